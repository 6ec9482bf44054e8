//! Random bytes, and recorded inputs with random damage, for every target: a peer's bytes never panic, are never lost in
//! silence, and keep every law that good input keeps.

#[path = "support/case.rs"]
mod case;
#[path = "support/laws.rs"]
mod laws;
#[path = "support/lines.rs"]
mod lines;
#[path = "support/node_laws.rs"]
mod node_laws;
#[path = "support/schema.rs"]
mod schema;
#[path = "support/sdk.rs"]
mod sdk;
#[path = "support/seeds.rs"]
mod seeds;
#[path = "support/targets.rs"]
mod targets;

use std::{collections::BTreeMap, sync::LazyLock};

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};
use serde_json::Value;

static LINES: LazyLock<Vec<Bytes>> = LazyLock::new(seeds::lines);
/// What each target is begun with.
static SEEDS: LazyLock<BTreeMap<&str, Vec<Bytes>>> =
    LazyLock::new(|| targets::TARGETS.map(|(name, _)| (name, seeds::seeds(name))).into());

/// What stands where something else should.
const ODD: [&str; 12] = [
    "null",
    "true",
    "-1",
    "1e400",
    "18446744073709551617",
    "\"\"",
    "\"m1\"",
    "\"\\ud83d\"",
    "[]",
    "[null,1,\"x\"]",
    "{}",
    "{\"type\":\"text\",\"text\":7}",
];

#[derive(Clone, Debug)]
enum Damage {
    None,
    Flip(Index, u8),
    Cut(Index, Index),
    Insert(Index, Vec<u8>),
    /// The start of this line and the end of another.
    Splice(Index, Index, Index),
    /// Another value for a member: still JSON, no longer what is expected.
    Replace(Index, Index),
    Drop(Index),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_lines_keep_every_law(stories in prop::collection::vec(damaged_story(), 1..4)) {
        targets::steps(&stories.concat().join(&b'\n'));
    }

    #[test]
    fn a_daemons_records_keep_every_law(inputs in prop::collection::vec(damaged("nodes"), 1..4)) {
        targets::nodes(&inputs.concat());
    }

    #[test]
    fn json_keeps_every_law(input in damaged("json")) {
        targets::json(&input);
    }

    #[test]
    fn strings_keep_every_law(input in damaged("strings")) {
        targets::strings(&input);
    }

    #[test]
    fn event_streams_keep_every_law(input in damaged("sse")) {
        targets::sse(&input);
    }

    #[test]
    fn cursors_keep_every_law(input in damaged("cursors")) {
        targets::cursors(&input);
    }

    #[test]
    fn messages_of_a_bridge_keep_every_law(stories in prop::collection::vec(damaged("bridge"), 1..4)) {
        targets::bridge(&stories.join(&b'\n'));
    }

    #[test]
    fn messages_in_protobuf_keep_every_law(input in damaged("bridge")) {
        targets::bridge(&input);
    }

    #[test]
    fn frames_keep_every_law(input in damaged("frames")) {
        targets::frames(&input);
    }

    #[test]
    fn stored_events_keep_every_law(input in damaged("stored")) {
        targets::stored(&input);
    }

    #[test]
    fn random_bytes_keep_every_law(input in prop::collection::vec(any::<u8>(), 0..300)) {
        targets::TARGETS.iter().for_each(|(_, target)| target(&input));
    }
}

#[test]
fn every_seed_keeps_every_law() {
    for (name, target) in targets::TARGETS {
        assert!(SEEDS[name].len() > 10, "{name} has few seeds");
        SEEDS[name].iter().for_each(|seed| target(seed));
    }
}

/// What a fuzzer has found, by target: it stays found.
#[test]
fn what_was_found_keeps_every_law() {
    let found: [(targets::Target, &[u8]); 0] = [];
    found.iter().for_each(|(target, input)| target(input));
}

/// A seed of the target with some damage, its choices included.
fn damaged(target: &'static str) -> impl Strategy<Value = Bytes> {
    (any::<Index>(), any::<[u8; 24]>(), prop::collection::vec(damage(), 0..5)).prop_map(move |(seed, choices, damages)| {
        // The choices apart, so that JSON can be damaged as JSON.
        let choices = &choices[..2 * seeds::choices(target)];
        let seed = seed.get(&SEEDS[target]).slice(choices.len()..);
        let bytes = damages.iter().fold(seed, |bytes, damage| damage.applied_to(&bytes));
        Bytes::from([choices, &bytes].concat())
    })
}

/// A few lines that stood together.
fn damaged_story() -> impl Strategy<Value = Vec<Bytes>> {
    (any::<Index>(), prop::collection::vec(damage(), 1..7)).prop_map(|(start, damages)| {
        let lines = LINES.iter().cycle().skip(start.index(LINES.len()));
        damages.iter().zip(lines).map(|(damage, line)| damage.applied_to(line)).collect()
    })
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    prop_oneof![
        8 => Just(Damage::None),
        1 => (index(), 1u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        1 => (index(), index()).prop_map(|(from, to)| Damage::Cut(from, to)),
        1 => (index(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        1 => (index(), index(), index()).prop_map(|(other, at, from)| Damage::Splice(other, at, from)),
        4 => (index(), index()).prop_map(|(at, odd)| Damage::Replace(at, odd)),
        2 => index().prop_map(Damage::Drop),
    ]
}

impl Damage {
    fn applied_to(&self, line: &Bytes) -> Bytes {
        let mut bytes = line.to_vec();
        let place = |at: &Index| at.index(line.len() + 1);
        match self {
            Self::None => {}
            Self::Flip(_, _) if bytes.is_empty() => {}
            Self::Flip(at, bits) => bytes[at.index(line.len())] ^= bits,
            Self::Cut(from, to) => drop(bytes.drain(place(from).min(place(to))..place(from).max(place(to)))),
            Self::Insert(at, more) => drop(bytes.splice(place(at)..place(at), more.iter().copied())),
            Self::Splice(other, at, from) => {
                let other = other.get(&LINES);
                bytes.truncate(place(at));
                bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
            Self::Replace(at, odd) => return replaced(line, *at, Some(odd.get(&ODD))),
            Self::Drop(at) => return replaced(line, *at, None),
        }
        bytes.into()
    }
}

/// The line with one of its values, at any depth, replaced or left out; itself when it has none.
fn replaced(line: &Bytes, at: Index, by: Option<&&str>) -> Bytes {
    const MARK: &str = "the value that is replaced";
    let Ok(mut value) = serde_json::from_slice::<Value>(line) else { return line.clone() };
    let mut paths = Vec::new();
    paths_below(&value, "", &mut paths);
    if paths.is_empty() {
        return line.clone();
    }
    let path = at.get(&paths);
    match (by, path.rsplit_once('/').and_then(|(parent, key)| Some((value.pointer_mut(parent)?, key)))) {
        (None, Some((Value::Object(members), key))) => drop(members.remove(key)),
        (None, Some((Value::Array(items), key))) => drop(items.remove(key.parse().expect("an index"))),
        _ => value.pointer_mut(path).into_iter().for_each(|value| *value = MARK.into()),
    }
    // As text, because some of what is odd has no place in a `Value`.
    value.to_string().replace(&format!("\"{MARK}\""), by.unwrap_or(&"0")).into()
}

/// The JSON pointers of all that is below `value`. (Keys with `/` or `~` are passed by.)
fn paths_below(value: &Value, path: &str, paths: &mut Vec<String>) {
    let members = value.as_object().into_iter().flatten().map(|(key, inner)| (key.clone(), inner));
    let items = value.as_array().into_iter().flatten().enumerate().map(|(at, inner)| (at.to_string(), inner));
    for (key, inner) in members.chain(items).filter(|(key, _)| !key.contains(['/', '~'])) {
        paths.push(format!("{path}/{key}"));
        paths_below(inner, &format!("{path}/{key}"), paths);
    }
}
