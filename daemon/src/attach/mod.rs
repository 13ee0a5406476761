//! Attaching: how client processes come to their rings and regions, and what becomes of those when they go.
//!
//! [`run_dir`] makes sure that there is one daemon per run directory and opens its socket, [`listener`] accepts
//! clients and learns from the kernel who they are, [`session`] speaks the protocol of [`weir_ipc::attach`] with one
//! of them, [`create`] checks what a client asks for and makes the memory of a partition or gate. The node decides
//! everything that concerns more than one client.
//!
//! A client is trusted with nothing. A message that cannot be understood, descriptors that nobody asked for, more
//! rings or tasks than there may be: the client is detached with a reason that names the field, and no other client
//! notices. It may take neither the last file descriptor ([`descriptors`]) nor memory that it has already let go of
//! ([`region_watch`]).

pub mod create;
pub mod debloat;
pub mod descriptors;
pub mod listener;
mod readiness;
pub mod region_watch;
pub mod run_dir;
pub mod session;
