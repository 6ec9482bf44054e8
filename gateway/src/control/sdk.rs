//! The schema of `sdk.v1` at hand: from JSON to protobuf and back, for callers whose codec a bridge does not speak.

use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions};

/// The schema, as reflection shows it.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sdk.fds.bin"));

static POOL: LazyLock<Option<DescriptorPool>> = LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).ok());

/// Why a message cannot be said in the other codec.
#[derive(Debug, thiserror::Error)]
pub enum Untranslated {
    #[error("the schema that is known here does not have this message")]
    Unknown,
    #[error("not the message that the schema has: {0}")]
    Malformed(String),
}

/// Whether the schema has a method: `SdkAgentService/CreateAgent`.
pub fn has_method(method: &str) -> bool {
    method_of(method).is_ok()
}

/// The request of a method (`SdkAgentService/CreateAgent`); what the schema does not have is left out.
pub fn request_to_proto(method: &str, json: &[u8]) -> Result<Bytes, Untranslated> {
    let message = method_of(method)?.input();
    let mut from = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let read = DynamicMessage::deserialize_with_options(message, &mut from, &options).map_err(malformed)?;
    from.end().map_err(malformed)?;
    Ok(read.encode_to_vec().into())
}

/// An answer of a method, or one message of its stream.
pub fn answer_to_json(method: &str, proto: &[u8]) -> Result<Bytes, Untranslated> {
    to_json(method_of(method)?.output(), proto)
}

/// A message by its name: `sdk.v1.SdkErrorDetails`.
pub fn message_to_json(name: &str, proto: &[u8]) -> Result<Bytes, Untranslated> {
    let message = POOL.as_ref().and_then(|pool| pool.get_message_by_name(name)).ok_or(Untranslated::Unknown)?;
    to_json(message, proto)
}

fn to_json(message: MessageDescriptor, proto: &[u8]) -> Result<Bytes, Untranslated> {
    let read = DynamicMessage::decode(message, proto).map_err(malformed)?;
    let mut out = Vec::new();
    let mut to = serde_json::Serializer::new(&mut out);
    read.serialize_with_options(&mut to, &SerializeOptions::new()).map_err(malformed)?;
    Ok(out.into())
}

fn method_of(method: &str) -> Result<MethodDescriptor, Untranslated> {
    let (service, name) = method.split_once('/').ok_or(Untranslated::Unknown)?;
    let service = POOL.as_ref().and_then(|pool| pool.get_service_by_name(&format!("sdk.v1.{service}")));
    let method = service.and_then(|service| service.methods().find(|method| method.name() == name));
    method.ok_or(Untranslated::Unknown)
}

fn malformed(error: impl std::fmt::Display) -> Untranslated {
    Untranslated::Malformed(error.to_string())
}
