//! Requests of an attachment: asked, answered, and taken back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::Shutdown;
use weir_ipc::attach::message::{GRANTED, Request, RequestBody, ResponseBody, WITHDRAWN};
use weir_ipc::attach::socket::{self, AttachError};

use super::{Answer, Ended, SEND_TRIES, Session, Wanted, after, io_error};
use crate::error::Error;

/// Pieces in which an answer is waited for. A process that stood still itself finds the time of one of them over when it
/// goes on, and looks for the answer during the others.
const PIECES: u32 = 8;

impl Session {
    /// Asks, and waits for the answer as long as the daemon may take for one. A refusal is an error.
    pub(crate) fn request(&self, body: RequestBody) -> Result<Answer, Error> {
        let asked = asked_for(&body);
        let id = self.ask(body)?;
        let answer = self.await_answer(id, Some(self.request_timeout));
        let late = self.forget(id);
        match answer.map(|answer| answer.or(late)) {
            Ok(Some(answer)) => granted(answer),
            Ok(None) => {
                self.tell(RequestBody::Withdraw { request: id, ends_made: true });
                Err(Error::Unanswered { asked, waited: self.request_timeout })
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for what the daemon may have to wait for itself, and waits for the answer so long, or without bound. `None`:
    /// it did not come in that time, and nothing of the request is left.
    pub(crate) fn request_within(
        &self,
        body: RequestBody,
        timeout: Option<Duration>,
    ) -> Result<Option<Answer>, Error> {
        let asked = asked_for(&body);
        let id = self.ask(body)?;
        let answer = self.await_answer(id, timeout).and_then(|answer| match answer {
            Some(answer) => Ok(Some(answer)),
            None => self.take_back(id, asked),
        });
        self.forget(id);
        match answer? {
            Some((ResponseBody::Refused { code, .. }, _)) if code == WITHDRAWN => Ok(None),
            Some(answer) => granted(answer).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a request back that the daemon waits with. Its answer: what it was granted just before is welcome.
    fn take_back(&self, id: u64, asked: &'static str) -> Result<Option<Answer>, Error> {
        match self.request(RequestBody::Withdraw { request: id, ends_made: false }) {
            Ok(_withdrawn) => return Ok(self.forget(id)),
            // The daemon waits no more: from now on it is asked as for anything else.
            Err(Error::Refused { code, .. }) if code == GRANTED => {
                if let Some(answer) = self.await_answer(id, Some(self.request_timeout))? {
                    return Ok(Some(answer));
                }
            }
            Err(Error::Unanswered { .. }) => {}
            Err(error) => return Err(error),
        }
        self.tell(RequestBody::Withdraw { request: id, ends_made: true });
        Err(Error::Unanswered { asked, waited: self.request_timeout })
    }

    /// Sends a request. Its number.
    fn ask(&self, body: RequestBody) -> Result<u64, Error> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.lock().answers.insert(id, None);
        self.send(id, body).inspect_err(|_| drop(self.forget(id)))?;
        Ok(id)
    }

    /// Waits for an answer so long, or without bound. `None`: it did not come.
    fn await_answer(&self, id: u64, timeout: Option<Duration>) -> Result<Option<Answer>, Error> {
        for _ in 0..PIECES {
            let deadline = timeout.map(|timeout| after(timeout / PIECES));
            let slept = self.sleep(&Wanted::Answer(id), deadline);
            let answer = self.lock().answers.get_mut(&id).and_then(Option::take);
            if answer.is_some() {
                return Ok(answer);
            }
            slept?;
        }
        Ok(None)
    }

    /// Waits for an answer no more. It, if it is there.
    fn forget(&self, id: u64) -> Option<Answer> {
        self.lock().answers.remove(&id).flatten()
    }

    /// Tells the daemon to end something, and does not wait. That the daemon is gone is no news to who leaves it. If it
    /// takes no messages the attachment ends: else the daemon would keep for ever what it was not told to end.
    pub(crate) fn tell(&self, body: RequestBody) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if let Err(Error::Unanswered { .. }) = self.send(id, body) {
            let mut state = self.lock();
            state.ended.get_or_insert(Ended::Deaf);
            state.wake();
            drop(state);
            let _ = rustix::net::shutdown(&self.connection, Shutdown::Both);
        }
    }

    fn send(&self, id: u64, body: RequestBody) -> Result<(), Error> {
        let asked = asked_for(&body);
        let request = Request { id, body };
        let mut tries = (0..SEND_TRIES).map(|_| socket::send_request(&self.connection, &request));
        let sent = tries.find(|sent| *sent != Err(AttachError::WouldBlock));
        match sent.unwrap_or(Err(AttachError::WouldBlock)) {
            Ok(()) => Ok(()),
            Err(AttachError::WouldBlock) => Err(Error::Unanswered { asked, waited: self.send_timeout }),
            Err(AttachError::Closed) => {
                // The daemon may have said why before it left.
                self.read_last_words();
                Err(self.lock().ended.as_ref().map_or_else(|| self.gone(), |ended| self.error(ended)))
            }
            Err(cause) => Err(Error::os("asking the daemon", io_error(cause))),
        }
    }
}

/// The answer, unless it is a refusal.
fn granted(answer: Answer) -> Result<Answer, Error> {
    match answer {
        (ResponseBody::Refused { code, text }, _) => Err(Error::Refused { code, text }),
        answer => Ok(answer),
    }
}

/// What a request asks for, for people.
fn asked_for(body: &RequestBody) -> &'static str {
    match body {
        RequestBody::Hello { .. } => "an attachment",
        RequestBody::CreateTask { .. } => "a task",
        RequestBody::CreatePartition(_) => "a partition",
        RequestBody::CreateGate(_) => "a gate",
        RequestBody::CloseTask { .. } => "the end of a task",
        RequestBody::ClosePartition { .. } => "the end of a partition",
        RequestBody::CloseGate { .. } => "the end of a gate",
        RequestBody::Withdraw { .. } => "an earlier request to be taken back",
    }
}
