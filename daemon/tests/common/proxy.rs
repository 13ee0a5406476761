//! A fault proxy: a process between two daemons, in the shape of a thread. It passes bytes on until it is told to cut,
//! hold, delay or split them. Nothing is ever lost or changed on a connection that lives, as TCP has it: what it can
//! do to two daemons is what a network, a firewall and a crashed host can. Only with [`Proxy::say`] does it speak in the
//! place of an end, as one would that is broken.
//!
//! ```text
//!  dialling daemon --> [Proxy::address] ~~ plan, cut, hold ~~> target daemon
//! ```
//! ```ignore
//! let proxy = Proxy::start(&address_of_b);          // a: --peer b=proxy.address()
//! proxy.plan(Kind::Data, Plan { to_dialler: vec![(70_000, Fault::Cut(Cut::Reset))], ..Plan::default() });
//! proxy.cut(Kind::Data, Cut::Finish);               // those that live now
//! proxy.hold(Kind::Data); proxy.release(Kind::Data);
//! assert_eq!(proxy.count(Kind::Data), 2);           // connections ever made
//! ```
//! Which kind of link a connection is shows in its first Hello. Byte numbers count from the start of a connection,
//! its handshake included.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weir_flow::wire::{CONTROL_BYTES_MAX, FrameReader, LinkKind, Message};

/// Bytes of each direction of each connection that are kept for [`Proxy::recorded`].
const RECORDED_BYTES: usize = 4096;

/// Bytes that wait inside the proxy for their delay, per direction.
const DELAYED_BYTES_MAX: usize = 4 << 20;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A control link.
    Control,
    /// A data link.
    Data,
    /// It did not begin with a Hello.
    Other,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// RST to both ends.
    Reset,
    /// FIN to both ends, behind what was passed on.
    Finish,
    /// RST to the dialler only. The target's socket stays open, and nobody reads it: half-open.
    ResetDialler,
    /// RST to the target only. The dialler's socket stays open, and nobody reads it: half-open.
    ResetTarget,
    /// Nothing to either: both sockets stay open, and nothing passes any more: a black hole.
    Silence,
}

/// What happens when so many bytes were passed on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing passes in this direction for so long.
    Stall(Duration),
    /// The connection ends.
    Cut(Cut),
}

/// What is done to a connection. The default does nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Faults after so many bytes from the dialler to the target, in ascending order.
    pub(crate) to_target: Vec<(u64, Fault)>,
    /// The same for the other direction.
    pub(crate) to_dialler: Vec<(u64, Fault)>,
    /// How much later everything arrives.
    pub(crate) delay: Duration,
    /// Most bytes of one write, each sent as a segment of its own. 0: as they come.
    pub(crate) piece_bytes: usize,
}

/// One of the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the dialler to the target.
    ToTarget,
    /// From the target to the dialler.
    ToDialler,
}

/// What the test wants of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Pass,
    Hold,
    Cut(Cut),
}

/// One connection that was ever made.
#[derive(Debug)]
struct Connection {
    kind: Option<Kind>,
    order: watch::Sender<Order>,
    lives: bool,
    passed: [u64; 2],
    /// What is to be passed on although nobody sent it.
    said: [Vec<u8>; 2],
    recorded: [Vec<u8>; 2],
}

#[derive(Debug, Default)]
struct Table {
    connections: Vec<Connection>,
    /// Plans for connections to come: those for the next ones, then the one for all later ones.
    next: BTreeMap<Kind, VecDeque<Plan>>,
    always: BTreeMap<Kind, Plan>,
    held: BTreeMap<Kind, bool>,
    refusing: bool,
    refused: usize,
}

/// The proxy. Its connections are closed with the value.
pub(crate) struct Proxy {
    address: SocketAddr,
    table: Arc<Mutex<Table>>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of loopback for connections to `target` (`host:port`).
    pub(crate) fn start(target: &str) -> Self {
        let target: SocketAddr = target.parse().expect("an address");
        assert!(target.ip().is_loopback(), "nothing is sent elsewhere");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let table = Arc::new(Mutex::new(Table::default()));
        let (stop, mut stopped) = watch::channel(false);
        let shared = Arc::clone(&table);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, target, shared) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
        });
        Self { address, table, stop, thread: Some(thread) }
    }

    /// Where to dial it.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// What is done to the next connection of this kind that has no plan yet. Plans queue up.
    pub(crate) fn plan(&self, kind: Kind, plan: Plan) {
        self.table().next.entry(kind).or_default().push_back(plan);
    }

    /// What is done to all later connections of this kind.
    pub(crate) fn plan_always(&self, kind: Kind, plan: Plan) {
        self.table().always.insert(kind, plan);
    }

    /// Ends the connections of this kind that live; how many these were.
    pub(crate) fn cut(&self, kind: Kind, cut: Cut) -> usize {
        self.order(kind, Order::Cut(cut))
    }

    /// Passes bytes on that nobody sent, behind those that are under way, on the connections of this kind that live; how
    /// many these were.
    pub(crate) fn say(&self, kind: Kind, way: Way, bytes: &[u8]) -> usize {
        let mut count = 0;
        for connection in &mut self.table().connections {
            if connection.lives && connection.kind == Some(kind) {
                connection.said[way as usize].extend_from_slice(bytes);
                // The order stays as it is; whoever waits for one looks here, too.
                connection.order.send_modify(|_| {});
                count += 1;
            }
        }
        count
    }

    /// Lets nothing pass on connections of this kind, those to come included; nothing is lost.
    pub(crate) fn hold(&self, kind: Kind) {
        self.table().held.insert(kind, true);
        self.order(kind, Order::Hold);
    }

    /// Takes [`Proxy::hold`] back.
    pub(crate) fn release(&self, kind: Kind) {
        self.table().held.insert(kind, false);
        self.order(kind, Order::Pass);
    }

    /// Whether new connections are reset at once, as if nobody listened.
    pub(crate) fn refuse(&self, refusing: bool) {
        self.table().refusing = refusing;
    }

    /// How many were reset at once.
    pub(crate) fn refused(&self) -> usize {
        self.table().refused
    }

    /// Connections of this kind that were ever made, but for those refused.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.table().connections.iter().filter(|connection| connection.kind == Some(kind)).count()
    }

    /// Connections of this kind that live.
    pub(crate) fn living(&self, kind: Kind) -> usize {
        self.table()
            .connections
            .iter()
            .filter(|connection| connection.lives && connection.kind == Some(kind))
            .count()
    }

    /// Bytes that were passed on, over all connections of this kind.
    pub(crate) fn passed(&self, kind: Kind, way: Way) -> u64 {
        self.table()
            .connections
            .iter()
            .filter(|connection| connection.kind == Some(kind))
            .map(|connection| connection.passed[way as usize])
            .sum()
    }

    /// The first bytes that were passed on of the `number`th connection of this kind.
    pub(crate) fn recorded(&self, kind: Kind, number: usize, way: Way) -> Vec<u8> {
        self.table()
            .connections
            .iter()
            .filter(|connection| connection.kind == Some(kind))
            .nth(number)
            .map(|connection| connection.recorded[way as usize].clone())
            .unwrap_or_default()
    }

    fn order(&self, kind: Kind, order: Order) -> usize {
        let mut count = 0;
        for connection in &self.table().connections {
            if connection.lives && connection.kind == Some(kind) {
                connection.order.send_replace(order);
                count += 1;
            }
        }
        count
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("the table")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, table: Arc<Mutex<Table>>) {
    let mut connections = JoinSet::new();
    loop {
        let dialler = tokio::select! {
            Ok((stream, _)) = listener.accept() => stream,
            Some(_) = connections.join_next() => continue,
        };
        let (order, orders) = watch::channel(Order::Pass);
        let number = {
            let mut table = table.lock().expect("the table");
            if table.refusing {
                table.refused += 1;
                reset(dialler);
                continue;
            }
            table.connections.push(Connection {
                kind: None,
                order,
                lives: true,
                passed: [0; 2],
                said: [Vec::new(), Vec::new()],
                recorded: [Vec::new(), Vec::new()],
            });
            table.connections.len() - 1
        };
        let table = Arc::clone(&table);
        connections.spawn(async move {
            let lane = Lane { number, table: Arc::clone(&table) };
            serve(dialler, target, lane, orders).await;
            table.lock().expect("the table").connections[number].lives = false;
        });
    }
}

/// What both directions of a connection share.
#[derive(Clone)]
struct Lane {
    number: usize,
    table: Arc<Mutex<Table>>,
}

impl Lane {
    fn with<T>(&self, act: impl FnOnce(&mut Connection) -> T) -> T {
        act(&mut self.table.lock().expect("the table").connections[self.number])
    }

    /// Says of which kind the connection is; its plan.
    fn begin(&self, kind: Kind) -> Plan {
        let mut table = self.table.lock().expect("the table");
        let is_held = table.held.get(&kind).copied().unwrap_or_default();
        let connection = &mut table.connections[self.number];
        connection.kind = Some(kind);
        if is_held {
            connection.order.send_replace(Order::Hold);
        }
        let next = table.next.get_mut(&kind).and_then(VecDeque::pop_front);
        next.or_else(|| table.always.get(&kind).cloned()).unwrap_or_default()
    }
}

async fn serve(mut dialler: TcpStream, target: SocketAddr, lane: Lane, mut orders: watch::Receiver<Order>) {
    let (kind, first) = classify(&mut dialler).await;
    let plan = lane.begin(kind);
    let Ok(mut target) = TcpStream::connect(target).await else {
        reset(dialler);
        return;
    };
    for stream in [&dialler, &target] {
        stream.set_nodelay(true).expect("an option of every TCP socket");
    }
    let cut = {
        let (from_dialler, to_dialler) = dialler.split();
        let (from_target, to_target) = target.split();
        let pump = |way, from, to, faults: &[(u64, Fault)], first: Vec<u8>| Pump {
            way,
            from: Some(from),
            to,
            faults: faults.iter().copied().collect(),
            plan: plan.clone(),
            lane: lane.clone(),
            waiting: VecDeque::from([(Instant::now() + plan.delay, first)]),
            passed: 0,
        };
        let forth = pump(Way::ToTarget, from_dialler, to_target, &plan.to_target, first);
        let back = pump(Way::ToDialler, from_target, to_dialler, &plan.to_dialler, Vec::new());
        let (seen_forth, seen_back) = (orders.clone(), orders.clone());
        let both = async {
            tokio::try_join!(forth.run(seen_forth), back.run(seen_back)).err().unwrap_or(Cut::Finish)
        };
        let told = async {
            match orders.wait_for(|order| matches!(order, Order::Cut(_))).await.map(|order| *order) {
                Ok(Order::Cut(cut)) => cut,
                // The proxy ends.
                _ => Cut::Reset,
            }
        };
        tokio::select! {
            cut = both => cut,
            cut = told => cut,
        }
    };
    lane.with(|connection| connection.lives = false);
    match cut {
        Cut::Reset => {
            reset(dialler);
            reset(target);
        }
        Cut::Finish => {
            tokio::join!(finish(dialler), finish(target));
        }
        Cut::ResetDialler => {
            reset(dialler);
            keep(target).await;
        }
        Cut::ResetTarget => {
            reset(target);
            keep(dialler).await;
        }
        Cut::Silence => {
            tokio::join!(keep(dialler), keep(target));
        }
    }
}

/// Reads until it is known what the connection is for. The bytes read are to be passed on.
async fn classify(dialler: &mut TcpStream) -> (Kind, Vec<u8>) {
    let (mut frames, mut first, mut bytes) = (FrameReader::new(CONTROL_BYTES_MAX), Vec::new(), [0; 1024]);
    loop {
        let count = dialler.read(&mut bytes).await.unwrap_or(0);
        first.extend_from_slice(&bytes[..count]);
        frames.push(&bytes[..count]);
        match frames.poll_message() {
            Ok(Some(Message::Hello { hello, .. })) => {
                let kind = if hello.kind == LinkKind::Data { Kind::Data } else { Kind::Control };
                return (kind, first);
            }
            Ok(None) if count > 0 => {}
            _ => return (Kind::Other, first),
        }
    }
}

/// One direction of a connection.
struct Pump<'a> {
    way: Way,
    /// None once the sender has finished.
    from: Option<ReadHalf<'a>>,
    to: WriteHalf<'a>,
    faults: VecDeque<(u64, Fault)>,
    plan: Plan,
    lane: Lane,
    /// Bytes and when they are due.
    waiting: VecDeque<(Instant, Vec<u8>)>,
    passed: u64,
}

impl Pump<'_> {
    /// Passes bytes on until both the sender has finished and all of it was passed on; or says how it was cut.
    async fn run(mut self, mut orders: watch::Receiver<Order>) -> Result<(), Cut> {
        let mut bytes = vec![0; 256 << 10];
        loop {
            // Held: nothing is read either, so that the sender meets a full socket in the end.
            if orders.wait_for(|order| *order != Order::Hold).await.is_err() {
                return Err(Cut::Reset);
            }
            let said = self.lane.with(|connection| std::mem::take(&mut connection.said[self.way as usize]));
            if !said.is_empty() {
                self.waiting.push_back((Instant::now() + self.plan.delay, said));
            }
            let due = self.waiting.front().map(|(due, _)| *due);
            if due.is_some_and(|due| due <= Instant::now()) {
                let (_, bytes) = self.waiting.pop_front().expect("it was there");
                self.pass(&bytes).await?;
                continue;
            }
            let is_full =
                self.waiting.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > DELAYED_BYTES_MAX;
            let read = async {
                match &mut self.from {
                    Some(from) if !is_full => from.read(&mut bytes).await,
                    _ => std::future::pending().await,
                }
            };
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                read = read => match read {
                    Ok(0) => self.from = None,
                    Ok(count) => {
                        self.waiting.push_back((Instant::now() + self.plan.delay, bytes[..count].to_vec()));
                    }
                    Err(_) => return Err(Cut::Reset),
                },
                () = wait => {}
                _ = orders.changed() => {}
            }
            if self.from.is_none() && self.waiting.is_empty() {
                let _ = self.to.shutdown().await;
                return Ok(());
            }
        }
    }

    async fn pass(&mut self, mut bytes: &[u8]) -> Result<(), Cut> {
        loop {
            let mut most = if self.plan.piece_bytes == 0 { bytes.len() } else { self.plan.piece_bytes };
            if let Some((at, fault)) = self.faults.front().copied() {
                if at <= self.passed {
                    self.faults.pop_front();
                    match fault {
                        Fault::Stall(time) => tokio::time::sleep(time).await,
                        Fault::Cut(cut) => return Err(cut),
                    }
                    continue;
                }
                most = most.min(usize::try_from(at - self.passed).unwrap_or(usize::MAX));
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let (piece, rest) = bytes.split_at(most.min(bytes.len()));
            self.to.write_all(piece).await.map_err(|_| Cut::Reset)?;
            bytes = rest;
            self.passed += piece.len() as u64;
            self.lane.with(|connection| {
                connection.passed[self.way as usize] = self.passed;
                let recorded = &mut connection.recorded[self.way as usize];
                let room = RECORDED_BYTES - recorded.len();
                recorded.extend_from_slice(&piece[..piece.len().min(room)]);
            });
            if self.plan.piece_bytes > 0 {
                // The other direction and other connections take their turn.
                tokio::task::yield_now().await;
            }
        }
    }
}

fn reset(stream: TcpStream) {
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// Ends a stream in order: unread bytes in a socket that is closed would make a reset of it.
async fn finish(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut scrap = vec![0; 64 << 10];
    while matches!(stream.read(&mut scrap).await, Ok(1..)) {}
}

/// Keeps a socket open until the proxy ends.
async fn keep(stream: TcpStream) {
    let _stream = stream;
    std::future::pending::<()>().await;
}
