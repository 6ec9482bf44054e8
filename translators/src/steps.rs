//! The room of Claude Code messages: read from NDJSON and rows, written to WebSocket and REST.

pub mod cursor;
pub mod decode;
pub mod encode;
mod join;
mod record;
mod row;
mod verdict;

pub use cursor::{BadCursor, Cursor, Since};
pub use decode::{Decoder, Place, RowPlace};
pub use join::{Joined, SocketFrame};
pub use row::RunRow;
