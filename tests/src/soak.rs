//! Everything at once: runs of all upstreams, clients of all protocols that come and go, and faults. `benches/soak.rs` runs
//! it for minutes and says what is checked.

mod clients;
mod faults;
mod sources;

pub use clients::{Clients, Seen, digest};
pub use faults::{Fault, World};
pub use sources::{Kind, Runs, Sources, whole_text_of_node};
