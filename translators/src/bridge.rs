//! The room of `sdk.v1`: gRPC, gRPC-Web and Connect (contracts/sdk-v1.md).

pub mod calls;
pub mod cursor;
pub mod decode;
pub mod encode;
pub mod envelope;
mod fields;
pub mod frames;
mod payload;
mod proto;
mod schema;

pub use cursor::{BadOffset, Offset};
pub use decode::{Decoder, Place};
pub use encode::Message;
pub use envelope::{Codec, Content, Envelope, fingerprint};
pub use frames::{Frame, Frames};
pub use schema::Malformed;
