//! One process of the job that the bench gives to Weir and to other libraries alike: `weir-peers app ROLE`. What it was built
//! with: `weir-peers list`.

mod byte_stream;
mod messages;
#[cfg(feature = "aeron")]
mod over_aeron;
mod over_h2;
mod over_quinn;
mod over_tokio;
mod over_tonic;
mod over_yamux;
#[cfg(feature = "zeromq")]
mod over_zeromq;
mod records;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::sync::Arc;

use weir_bench::app::{self, Board};
use weir_bench::peers::{Options, Part, Peer};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["list"] => {
            Peer::ALL
                .into_iter()
                .filter(|peer| is_built_in(*peer))
                .for_each(|peer| println!("{}", peer.name()));
            Ok(())
        }
        ["app", role] => serve(role),
        _ => Err("usage: weir-peers list | weir-peers app ROLE; the bench starts it".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("weir-peers: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn serve(role: &str) -> Result<(), String> {
    let options: Options = serde_json::from_str(role).map_err(|error| format!("bad role: {error}"))?;
    let board = Board::new(2);
    start(options, &board)?;
    app::obey(&board)
}

fn is_built_in(peer: Peer) -> bool {
    match peer {
        Peer::ZeroMq => cfg!(feature = "zeromq"),
        Peer::Aeron => cfg!(feature = "aeron"),
        _ => true,
    }
}

/// Starts the part in a thread of its own. The port of a receiver stands as the record count of worker 1.
fn start(options: Options, board: &Arc<Board>) -> Result<(), String> {
    let receives = matches!(options.part, Part::Receive | Part::NoteTimes);
    match (options.peer, receives) {
        (Peer::Tokio, true) => over_tokio::receive(options, board),
        (Peer::Tokio, false) => over_tokio::send(options, board),
        (Peer::H2, true) => over_h2::receive(options, board),
        (Peer::H2, false) => over_h2::send(options, board),
        (Peer::Tonic, true) => over_tonic::receive(options, board),
        (Peer::Tonic, false) => over_tonic::send(options, board),
        (Peer::Yamux, true) => over_yamux::receive(options, board),
        (Peer::Yamux, false) => over_yamux::send(options, board),
        (Peer::Quinn, true) => over_quinn::receive(options, board),
        (Peer::Quinn, false) => over_quinn::send(options, board),
        #[cfg(feature = "zeromq")]
        (Peer::ZeroMq, true) => over_zeromq::receive(options, board),
        #[cfg(feature = "zeromq")]
        (Peer::ZeroMq, false) => over_zeromq::send(options, board),
        #[cfg(feature = "aeron")]
        (Peer::Aeron, true) => over_aeron::receive(options, board),
        #[cfg(feature = "aeron")]
        (Peer::Aeron, false) => over_aeron::send(options, board),
        #[cfg(not(feature = "aeron"))]
        (Peer::Aeron, _) => Err("built without Aeron".to_owned()),
        #[cfg(not(feature = "zeromq"))]
        (Peer::ZeroMq, _) => Err("built without ZeroMQ".to_owned()),
    }
}
