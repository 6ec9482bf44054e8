//! Watches the live streams of agent runs that runcast serves, or any server that speaks its contracts.
//!
//! A [`Client`] knows where the server is. A [`NodeStream`] gives the typed events of a run, in the form of a node; a
//! [`Run`] gives its recorded steps over WebSocket ([`Run::watch`]), its messages of `sdk.v1` ([`Run::stream`]), and how it
//! ended ([`Run::wait`]). All of them are observers: nothing that is done with them changes the run.
//!
//! Every stream comes back by itself when the connection is lost or the server sends it away, with its protocol's own
//! cursor: nothing is lost and nothing comes twice. Ids are checked before any request is made.
//!
//! ```no_run
//! use runcast_client::{Client, NodeEvent};
//!
//! # async fn example() -> Result<(), runcast_client::Error> {
//! let client = Client::new("http://127.0.0.1:8080")?;
//! let mut stream = client.events("fix-1", None)?;
//! while let Some(event) = stream.next().await {
//!     if let NodeEvent::OutputTextDelta { delta, .. } = event? {
//!         print!("{delta}");
//!     }
//! }
//! let outcome = stream.final_outcome().await?;
//! println!("\n{}", outcome.status);
//! # Ok(())
//! # }
//! ```

mod abort;
mod activity;
mod client;
mod error;
mod frame;
mod message;
mod nodes;
mod observe;
mod patience;
mod run;
mod status;
mod watch;

pub use abort::AbortHandle;
pub use activity::{Activity, ActivityStep, StepStatus, describe_tool_default, follow_activity};
pub use client::{Builder, Client, RunPage, StepPage};
pub use error::Error;
pub use frame::{Frame, FrameKind, RunObject, RunStep};
pub use message::{MessageKind, RunMessage, RunResult};
pub use nodes::{NodeError, NodeEvent, NodeStream, Outcome, ToolStatus};
pub use observe::MessageStream;
pub use run::{Poll, Run};
pub use status::StatusListener;
pub use watch::{Watch, WatchFrom};
