//! Leaves out the oldest messages of a conversation until it fits. Instructions and the last question stay, and a call
//! goes together with its results. Turns go first, oldest first; then, of the last turn, the steps after its question.

use std::ops::Range;

use super::message::Message;

const INSTRUCTIONS: [&str; 2] = ["system", "developer"];

/// The messages that are left after the first `count` droppable groups.
pub(super) fn without_oldest(messages: &[Message], count: usize) -> Vec<Message> {
    let dropped: Vec<_> = groups(messages).into_iter().take(count).collect();
    let is_kept = |(index, message): &(usize, &Message)| {
        is_instruction(message) || !dropped.iter().any(|range| range.contains(index))
    };
    messages.iter().enumerate().filter(is_kept).map(|(_, message)| message.clone()).collect()
}

/// Ranges of messages that may be left out, each only as a whole, in the order in which they go.
pub(super) fn groups(messages: &[Message]) -> Vec<Range<usize>> {
    let len = messages.len();
    let starts: Vec<usize> = (0..len).filter(|&index| messages[index].is_from("user")).collect();
    let Some(&question) = starts.last() else { return steps(messages, 0..len) };
    let first = messages.iter().position(|message| !is_instruction(message)).unwrap_or(question);
    let mut bounds: Vec<usize> = std::iter::once(first).chain(starts).collect();
    bounds.dedup();
    let turns = bounds.windows(2).map(|pair| pair[0]..pair[1]);
    turns.chain(steps(messages, question + 1..len)).collect()
}

/// The steps of a turn: messages of the assistant, each with the results of its calls. The last step stays.
fn steps(messages: &[Message], range: Range<usize>) -> Vec<Range<usize>> {
    let starts: Vec<usize> = range.filter(|&index| messages[index].is_from("assistant")).collect();
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn is_instruction(message: &Message) -> bool {
    INSTRUCTIONS.iter().any(|role| message.is_from(role))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message for each letter: of the system, a user, the assistant, or a tool.
    fn conversation(roles: &str) -> Vec<Message> {
        let role = |c| match c {
            's' => "system",
            'u' => "user",
            'a' => "assistant",
            _ => "tool",
        };
        roles.chars().enumerate().map(|(at, c)| Message::new(role(c), format!("{c}{at}"), "")).collect()
    }

    fn left(roles: &str, count: usize) -> String {
        let kept = without_oldest(&conversation(roles), count);
        let first_letter = |message: &Message| {
            ["system", "user", "assistant"]
                .iter()
                .find(|role| message.is_from(role))
                .map_or('t', |role| role.chars().next().unwrap_or_default())
        };
        kept.iter().map(first_letter).collect()
    }

    #[test]
    fn turns_go_first_and_then_the_steps_of_the_last_one() {
        let roles = "suauatsuatata";
        assert_eq!(groups(&conversation(roles)), [1..3, 3..7, 8..10, 10..12]);
        for (count, expected) in
            [(0, roles), (1, "suatsuatata"), (2, "ssuatata"), (3, "ssuata"), (4, "ssua"), (9, "ssua")]
        {
            assert_eq!(left(roles, count), expected, "{count}");
        }
    }

    #[test]
    fn the_question_stays_and_so_does_what_cannot_be_divided() {
        for roles in ["u", "su", "ua", "uat", "s", "", "a"] {
            assert_eq!(left(roles, 5), roles);
        }
        assert_eq!(left("auau", 1), "uau");
        assert_eq!(left("aata", 5), "a");
    }
}
