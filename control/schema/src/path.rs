//! Field paths as kube prints them: `spec.tasks[0].role`, `metadata.labels[a/b]`.

use std::fmt::Write;

/// A path that grows and shrinks while a tree is walked; allocates once.
#[derive(Debug, Default)]
pub struct Path {
    text: String,
}

impl Path {
    pub fn new(root: &str) -> Self {
        Self { text: root.to_owned() }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Appends `.name` and returns what `pop` needs.
    pub fn push(&mut self, name: &str) -> usize {
        let mark = self.text.len();
        if mark > 0 {
            self.text.push('.');
        }
        self.text.push_str(name);
        mark
    }

    /// Appends `[index]`.
    pub fn push_index(&mut self, index: usize) -> usize {
        let mark = self.text.len();
        // Writing to a String cannot fail.
        let _written = write!(self.text, "[{index}]");
        mark
    }

    /// Back to the state before the push that returned `mark`.
    pub fn pop(&mut self, mark: usize) {
        self.text.truncate(mark);
    }

    pub fn child(&self, name: &str) -> String {
        if self.text.is_empty() { name.to_owned() } else { format!("{}.{name}", self.text) }
    }
}
