//! The most important test: for every protocol and every cursor that a stream ever handed out, what was seen up to the
//! cursor and what a resume gives after it are together exactly the run's records; and each text comes once.
//!
//! Runs are generated as lines of Claude Code's stream-json (with deltas, abandoned text, sub-agents, unknown types and
//! noise), sent in by an owner that is restarted at any line, also in the middle of a message's events, while clients of
//! every protocol watch, are cut, and come back. The seed of a failure is printed by proptest and kept in its file.

#[path = "resume_law/clients.rs"]
mod clients;
#[path = "shared/lines.rs"]
mod lines;
#[path = "../../tests/src/nats.rs"]
#[expect(dead_code, reason = "not all of it is used here")]
mod nats;
#[path = "resume_law/script.rs"]
mod script;
#[path = "resume_law/world.rs"]
mod world;

use proptest::prelude::*;

use self::{script::Act, world::World};

fn check(script: &script::Script) -> Result<(), TestCaseError> {
    check_on(script, None)
}

/// With `nats`: clients and the owner move between replicas.
fn check_on(script: &script::Script, nats: Option<(&str, &str)>) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut world = World::new(nats).await;
        for act in &script.acts {
            match act {
                Act::Lines(count) => world.send(&script.lines, *count).await,
                Act::Look(client) => world.look(*client).await,
                Act::Cut(client) => world.cut(*client),
                Act::RestartOwner => world.restart_owner(),
                Act::RestartProcess => world.restart_process().await,
                Act::StopInsideMessage(events) => world.stop_inside_message(&script.lines, *events).await,
            }
        }
        world.finish(&script.lines).await;
        world.check(&script.lines).await
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn every_cursor_resumes_exactly(script in script::script()) {
        check(&script)?;
    }
}

#[test]
fn every_cursor_resumes_exactly_on_any_replica() {
    let server = nats::NatsServer::start();
    let number = std::sync::atomic::AtomicUsize::new(0);
    let config = ProptestConfig { cases: 40, max_shrink_iters: 100, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config)
        .run(&script::script(), |script| {
            let name = format!("r{}", number.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            check_on(&script, Some((&server.url, &name)))
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Cases that deserve a name: each is a run that is easy to get wrong.
mod named {
    use super::*;
    use lines::{assistant, delta, init, message_start, result, thinking_only, tool_only, tool_result};
    use script::Script;

    /// Looks and cuts after every line, with every client.
    fn check_all_cuts(lines: Vec<String>) {
        for restart in [None, Some(Act::RestartOwner), Some(Act::RestartProcess)] {
            let mut acts = Vec::new();
            for _ in &lines {
                acts.push(Act::Lines(1));
                for client in 0..clients::COUNT {
                    acts.push(Act::Look(client));
                    if client % 2 == 0 {
                        acts.push(Act::Cut(client));
                    }
                }
                acts.extend(restart.clone());
            }
            check(&Script { lines: lines.clone(), acts }).unwrap_or_else(|error| panic!("with {restart:?}: {error}"));
        }
    }

    #[test]
    fn a_durable_event_in_the_middle_of_open_text() {
        check_all_cuts(vec![
            init(),
            message_start("m1"),
            delta("Hel"),
            tool_result("sub", Some("parent")),
            delta("lo"),
            assistant("m1", "Hello", None),
            result("Hello"),
        ]);
    }

    #[test]
    fn tool_only_and_thinking_only_lines_of_the_same_message_close_nothing() {
        check_all_cuts(vec![
            init(),
            message_start("m1"),
            thinking_only("m1"),
            delta("I'll "),
            tool_only("m1", "t1"),
            delta("look"),
            assistant("m1", "I'll look", None),
            delta(" twice"),
            assistant("m1", " twice", None),
            tool_result("t1", None),
            result("done"),
        ]);
    }

    #[test]
    fn text_that_does_not_match_its_deltas_is_shown_and_then_the_final_one() {
        check_all_cuts(vec![init(), message_start("m1"), delta("Helo"), assistant("m1", "Hello", None), result("Hello")]);
    }

    #[test]
    fn text_that_is_abandoned_by_another_message_a_result_or_the_end() {
        check_all_cuts(vec![
            init(),
            message_start("m1"),
            delta("try one"),
            message_start("m2"),
            delta("try two"),
            tool_only("m3", "t"),
        ]);
        check_all_cuts(vec![init(), message_start("m1"), delta("cut"), result("short")]);
        check_all_cuts(vec![init(), message_start("m1"), delta("cut")]);
    }

    #[test]
    fn a_character_cut_between_deltas() {
        let half = |escape: &str| delta("X").replace('X', escape);
        check_all_cuts(vec![init(), half("a\\ud83d"), half("\\ude00b"), assistant("m1", "a\u{1f600}b", None), result("x")]);
    }

    #[test]
    fn two_results_and_lines_after_the_result() {
        check_all_cuts(vec![
            init(),
            assistant("m1", "a", None),
            result("a"),
            tool_result("late", None),
            result("b"),
            delta("after"),
            assistant("m2", "after", None),
        ]);
    }
}
