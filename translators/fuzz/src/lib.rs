//! The targets and seeds of the translators' tests, as they are there.

#[path = "../../tests/support/case.rs"]
mod case;
#[path = "../../tests/support/laws.rs"]
mod laws;
#[path = "../../tests/support/lines.rs"]
mod lines;
#[path = "../../tests/support/node_laws.rs"]
mod node_laws;
#[path = "../../tests/support/schema.rs"]
mod schema;
#[path = "../../tests/support/sdk.rs"]
mod sdk;
#[path = "../../tests/support/seeds.rs"]
pub mod seeds;
#[path = "../../tests/support/targets.rs"]
pub mod targets;
