//! The events of a reply, in order.

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyEvent {
    /// More reasoning.
    Reasoning(String),
    /// More text.
    Text(String),
    /// A call begins; its arguments follow.
    Call {
        /// Name of the function.
        name: String,
    },
    /// More of the arguments of the last call, as JSON.
    Arguments(String),
}

/// Events not yet returned. Neighbours of the same kind are joined.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<ReplyEvent>);

impl Events {
    pub fn text(&mut self, more: impl AsRef<str> + Into<String>) {
        match self.0.last_mut() {
            _ if more.as_ref().is_empty() => {}
            Some(ReplyEvent::Text(text)) => text.push_str(more.as_ref()),
            _ => self.0.push(ReplyEvent::Text(more.into())),
        }
    }

    pub fn reasoning(&mut self, more: impl AsRef<str> + Into<String>) {
        match self.0.last_mut() {
            _ if more.as_ref().is_empty() => {}
            Some(ReplyEvent::Reasoning(text)) => text.push_str(more.as_ref()),
            _ => self.0.push(ReplyEvent::Reasoning(more.into())),
        }
    }

    pub fn arguments(&mut self, more: impl AsRef<str> + Into<String>) {
        match self.0.last_mut() {
            _ if more.as_ref().is_empty() => {}
            Some(ReplyEvent::Arguments(text)) => text.push_str(more.as_ref()),
            _ => self.0.push(ReplyEvent::Arguments(more.into())),
        }
    }

    pub fn call(&mut self, name: String) {
        self.0.push(ReplyEvent::Call { name });
    }

    pub fn take(&mut self) -> Vec<ReplyEvent> {
        std::mem::take(&mut self.0)
    }
}
