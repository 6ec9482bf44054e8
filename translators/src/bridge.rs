//! The room of `sdk.v1`: gRPC, gRPC-Web and Connect (contracts/sdk-v1.md).

pub mod cursor;
pub mod encode;
mod payload;
mod proto;

pub use cursor::{BadOffset, Offset};
pub use encode::Message;
