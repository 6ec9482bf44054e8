//! A plain activity feed from the tool calls of a node.

use std::{collections::HashMap, sync::Arc};

use crate::{Error, NodeEvent, NodeStream, ToolStatus};

/// One tool call, as a line of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityStep {
    pub call_id: String,
    pub tool: String,
    /// What `describe` made of it.
    pub label: String,
    pub status: StepStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStatus {
    Running,
    Done,
    Failed,
}

/// Names the common tools, `server: tool` for those of an MCP server, and else the tool as it is called. `summary` is the
/// shape of the arguments.
pub fn describe_tool_default(tool: &str, _summary: &str) -> Option<String> {
    if let Some((server, name)) = tool.strip_prefix("mcp__").and_then(|rest| rest.split_once("__")) {
        return Some(format!("{server}: {name}"));
    }
    let name = match tool.to_lowercase().replace('_', "").as_str() {
        "bash" => "Running a command",
        "bashoutput" => "Reading a command's output",
        "killshell" => "Stopping a command",
        "read" => "Reading a file",
        "write" => "Writing a file",
        "edit" | "multiedit" => "Editing a file",
        "notebookedit" => "Editing a notebook",
        "ls" => "Listing files",
        "glob" | "find" => "Looking for files",
        "grep" => "Searching in files",
        "webfetch" => "Reading a web page",
        "websearch" => "Searching the web",
        "task" | "agent" => "Working with a sub-agent",
        "todowrite" => "Planning",
        _ => tool,
    };
    Some(name.to_owned())
}

/// Turns the tool calls of a stream into lists of steps. `describe` is given a tool and the shape of its arguments; what it
/// gives is the label, and [`None`] hides the call.
///
/// ```no_run
/// use runcast_client::{Client, describe_tool_default, follow_activity};
///
/// # async fn example() -> Result<(), runcast_client::Error> {
/// let stream = Client::new("http://127.0.0.1:8080")?.events("fix-1", None)?;
/// let mut activity = follow_activity(stream, describe_tool_default);
/// while let Some(steps) = activity.next().await {
///     for step in steps?.iter() {
///         println!("{}: {:?}", step.label, step.status);
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub fn follow_activity<D: FnMut(&str, &str) -> Option<String>>(stream: NodeStream, describe: D) -> Activity<D> {
    Activity { stream, describe, steps: Vec::new(), places: HashMap::new() }
}

/// The lists of [`follow_activity`].
#[derive(Debug)]
pub struct Activity<D> {
    stream: NodeStream,
    describe: D,
    steps: Vec<Arc<ActivityStep>>,
    places: HashMap<String, usize>,
}

impl<D: FnMut(&str, &str) -> Option<String>> Activity<D> {
    /// The next list, when a step has begun or ended. A list never changes; steps that have not changed are shared with
    /// the one before. [`None`] when the node is settled.
    pub async fn next(&mut self) -> Option<Result<Arc<[Arc<ActivityStep>]>, Error>> {
        loop {
            let (call_id, tool, summary, status) = match self.stream.next().await? {
                Ok(NodeEvent::ToolCallStarted { call_id, tool, summary, .. }) => (call_id, tool, summary, StepStatus::Running),
                Ok(NodeEvent::ToolCallCompleted { call_id, tool, summary, status, .. }) => {
                    let status = if status == ToolStatus::Ok { StepStatus::Done } else { StepStatus::Failed };
                    (call_id, tool, summary, status)
                }
                Ok(_) => continue,
                Err(error) => return Some(Err(error)),
            };
            // A call that ends here may have begun before the cursor of this stream.
            let place = self.places.get(&call_id).copied();
            let label = match place {
                Some(place) => Some(self.steps[place].label.clone()),
                None => (self.describe)(&tool, &summary),
            };
            let Some(label) = label else { continue };
            let step = Arc::new(ActivityStep { call_id: call_id.clone(), tool, label, status });
            match place {
                Some(place) => self.steps[place] = step,
                None => {
                    self.places.insert(call_id, self.steps.len());
                    self.steps.push(step);
                }
            }
            return Some(Ok(self.steps.iter().cloned().collect()));
        }
    }

    /// The stream that is followed.
    pub fn stream(&self) -> &NodeStream {
        &self.stream
    }
}
