//! Requests of an attachment: asked, answered, and taken back.
//!
//! A future that is dropped while it waits for an answer takes its request back, as a call does that has waited for too
//! long: the daemon ends what it may have made of it before anything that is asked later.

use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_ipc::attach::message::{GRANTED, Request, RequestBody, ResponseBody, WITHDRAWN};
use weir_ipc::attach::socket::{self, AttachError};

use super::waits::Ended;
use super::{Answer, SEND_TRIES, Session, Wanted, after, io_error};
use crate::caller::Caller;
use crate::clock;
use crate::error::Error;

/// Pieces in which an answer is waited for. A process that stood still itself finds the time of one of them over when it
/// goes on, and looks for the answer during the others.
const PIECES: u32 = 8;

/// How often a future looks whether a socket that was full takes its message: each 2 ms.
const ROOM_RETRY_NS: u64 = 2_000_000;

/// A request whose answer is waited for. Dropped before it was settled, it is taken back.
struct Asked<'a> {
    session: &'a Session,
    id: u64,
    is_sent: bool,
}

impl Asked<'_> {
    /// Waits for the answer no more. It, if it is there.
    fn settle(&mut self) -> Option<Answer> {
        self.is_sent = false;
        self.session.forget(self.id)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        drop(self.session.forget(self.id));
        if self.is_sent {
            self.session.tell(RequestBody::Withdraw { request: self.id, ends_made: true });
        }
    }
}

impl Session {
    /// Asks, and waits for the answer as long as the daemon may take for one. A refusal is an error.
    pub(crate) async fn request(&self, caller: Caller, body: RequestBody) -> Result<Answer, Error> {
        let asked = asked_for(&body);
        let mut request = self.ask(caller, body).await?;
        match self.await_answer(caller, request.id, Some(self.request_timeout)).await {
            Ok(Some(answer)) => {
                request.settle();
                granted(answer)
            }
            Ok(None) => match self.take_answer(request.id) {
                Some(late) => {
                    request.settle();
                    granted(late)
                }
                None => Err(Error::Unanswered { asked, waited: self.request_timeout }),
            },
            Err(error) => {
                request.settle();
                Err(error)
            }
        }
    }

    /// Asks for what the daemon may have to wait for itself, and waits for the answer so long, or without bound. `None`:
    /// it did not come in that time, and nothing of the request is left.
    pub(crate) async fn request_within(
        &self,
        caller: Caller,
        body: RequestBody,
        timeout: Option<Duration>,
    ) -> Result<Option<Answer>, Error> {
        let asked = asked_for(&body);
        let mut request = self.ask(caller, body).await?;
        let answer = match self.await_answer(caller, request.id, timeout).await {
            Ok(None) => self.take_back(caller, &mut request, asked).await,
            answer => answer,
        };
        match answer {
            // Which has taken the request back itself.
            Err(Error::Unanswered { .. }) => {}
            _ => drop(request.settle()),
        }
        match answer? {
            Some((ResponseBody::Refused { code, .. }, _)) if code == WITHDRAWN => Ok(None),
            Some(answer) => granted(answer).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a request back that the daemon waits with. Its answer: what it was granted just before is welcome.
    async fn take_back(
        &self,
        caller: Caller,
        taken: &mut Asked<'_>,
        asked: &'static str,
    ) -> Result<Option<Answer>, Error> {
        match self.request(caller, RequestBody::Withdraw { request: taken.id, ends_made: false }).await {
            Ok(_withdrawn) => return Ok(taken.settle()),
            // The daemon waits no more: from now on it is asked as for anything else.
            Err(Error::Refused { code, .. }) if code == GRANTED => {
                let answer = self.await_answer(caller, taken.id, Some(self.request_timeout)).await?;
                if let Some(answer) = answer {
                    return Ok(Some(answer));
                }
            }
            Err(Error::Unanswered { .. }) => {}
            Err(error) => return Err(error),
        }
        Err(Error::Unanswered { asked, waited: self.request_timeout })
    }

    /// Sends a request.
    async fn ask(&self, caller: Caller, body: RequestBody) -> Result<Asked<'_>, Error> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.waits.lock().answers.insert(id, None);
        let mut request = Asked { session: self, id, is_sent: false };
        if caller == Caller::Future {
            self.await_room(asked_for(&body)).await?;
        }
        self.send(id, body)?;
        request.is_sent = true;
        Ok(request)
    }

    /// Waits until the socket takes a message without making a thread wait. It is full only if the daemon stands still.
    async fn await_room(&self, asked: &'static str) -> Result<(), Error> {
        let deadline = after(self.send_timeout);
        while !self.waits.has_room_to_send()? {
            let now = clock::now();
            if deadline <= now {
                return Err(Error::Unanswered { asked, waited: self.send_timeout });
            }
            let again = now.after_ns(ROOM_RETRY_NS).min(deadline);
            self.sleep(Caller::Future, &Wanted::Time, Some(again)).await?;
        }
        Ok(())
    }

    /// Waits for an answer so long, or without bound. `None`: it did not come.
    async fn await_answer(
        &self,
        caller: Caller,
        id: u64,
        timeout: Option<Duration>,
    ) -> Result<Option<Answer>, Error> {
        for _ in 0..PIECES {
            let deadline = timeout.map(|timeout| after(timeout / PIECES));
            let slept = self.sleep(caller, &Wanted::Answer(id), deadline).await;
            let answer = self.take_answer(id);
            if answer.is_some() {
                return Ok(answer);
            }
            slept?;
        }
        Ok(None)
    }

    /// The answer, if it is there.
    fn take_answer(&self, id: u64) -> Option<Answer> {
        self.waits.lock().answers.get_mut(&id).and_then(Option::take)
    }

    /// Waits for an answer no more. It, if it is there.
    fn forget(&self, id: u64) -> Option<Answer> {
        self.waits.lock().answers.remove(&id).flatten()
    }

    /// Tells the daemon to end something, and does not wait. That the daemon is gone is no news to who leaves it. If it
    /// takes no messages the attachment ends: else the daemon would keep for ever what it was not told to end.
    pub(crate) fn tell(&self, body: RequestBody) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if let Err(Error::Unanswered { .. }) = self.send(id, body) {
            self.waits.end(Ended::Deaf);
        }
    }

    fn send(&self, id: u64, body: RequestBody) -> Result<(), Error> {
        let asked = asked_for(&body);
        let (request, connection) = (Request { id, body }, &self.waits.connection);
        let mut tries = (0..SEND_TRIES).map(|_| socket::send_request(connection, &request));
        let sent = tries.find(|sent| *sent != Err(AttachError::WouldBlock));
        match sent.unwrap_or(Err(AttachError::WouldBlock)) {
            Ok(()) => Ok(()),
            Err(AttachError::WouldBlock) => Err(Error::Unanswered { asked, waited: self.send_timeout }),
            Err(AttachError::Closed) => {
                // The daemon may have said why before it left.
                self.waits.read_last_words();
                Err(self.waits.ended().unwrap_or_else(|| self.waits.gone()))
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
