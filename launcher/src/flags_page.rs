//! Renders docs/flags.md from the definitions of the flags.

use clap::{Arg, Args as _, Command, CommandFactory};
use penstock_router::proxy::options::ProxyConfig;

use crate::args::{Args, is_boolean};

/// Returns the whole page.
pub fn render() -> String {
    let command = Args::command();
    let mut page = String::from(
        "# Flags\n\n<!-- Written by `make docs`. -->\n\n\
         Every flag of `launcher` is also an environment variable; the flag wins. `HOSTNAME` counts only when it is an\n\
         address, because shells and containers set it to the name of the machine. Flags that are true or false take\n\
         `1`, `yes`, `on`, `0`, `no` and `off`, too, in upper or lower case.\n",
    );
    for heading in headings(&command) {
        page += &format!("\n## {heading}\n\n| Flag | Variable | Default | |\n| --- | --- | --- | --- |\n");
        let arguments = command.get_arguments().filter(|arg| arg.get_help_heading() == Some(heading));
        page.extend(arguments.filter(|arg| !arg.is_hide_set()).map(row));
    }
    page + "\n"
        + &exit_codes(&command)
        + &command.get_subcommands().map(subcommand).collect::<String>()
        + &proxy(&command)
}

/// The headings of groups of flags, in the order of the help text.
fn headings(command: &Command) -> Vec<&str> {
    let mut headings: Vec<_> = command.get_arguments().filter_map(Arg::get_help_heading).collect();
    headings.dedup();
    headings
}

fn row(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (text, said) = match help.split_once(" [default: ") {
        Some((text, default)) => (text, default.trim_end_matches(']').to_owned()),
        None => (help.as_str(), String::new()),
    };
    let env = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    let default = Some(defaults(arg)).filter(|text| !text.is_empty()).unwrap_or(said);
    format!("| {} | {env} | {default} | {} |\n", names(arg), text.replace('|', "\\|"))
}

fn names(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let possible = arg.get_possible_values();
    let shown = possible.iter().filter(|value| !value.is_hide_set());
    let mut values: Vec<_> = shown.map(|value| value.get_name().to_owned()).collect();
    if is_boolean(arg) {
        values = vec!["true".to_owned(), "false".to_owned()];
    }
    let takes = if values.is_empty() || !arg.get_action().takes_values() {
        String::new()
    } else {
        format!(" {}", values.join(", "))
    };
    format!("{short}`--{}`{takes}", arg.get_long().unwrap_or_default())
}

fn defaults(arg: &Arg) -> String {
    let given = arg.get_default_values().iter().filter(|value| !value.is_empty());
    let values: Vec<_> = given.map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if arg.get_action().takes_values() { values.join(" ") } else { String::new() }
}

/// The section about one subcommand.
fn subcommand(command: &Command) -> String {
    let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let head = format!("\n## launcher {}{}\n\n{about}\n", command.get_name(), positionals(command));
    let flags: String = command.get_arguments().filter(|arg| !arg.is_positional()).map(row).collect();
    head + "\n| Flag | Variable | Default | |\n| --- | --- | --- | --- |\n" + &flags
}

/// The section about the proxy: its own flags, and the names of those that the launcher has, too.
fn proxy(launcher: &Command) -> String {
    let command = ProxyConfig::augment_args(Command::new("penstock-router"));
    let is_known = |arg: &&Arg| launcher.get_arguments().any(|known| known.get_long() == arg.get_long());
    let (shared, own): (Vec<&Arg>, Vec<&Arg>) = command.get_arguments().partition(is_known);
    let shared: Vec<_> =
        shared.into_iter().map(|arg| format!("`--{}`", arg.get_long().unwrap_or_default())).collect();
    format!(
        "\n## penstock-router --upstream\n\nA proxy over whole servers ([scaling.md](scaling.md#several-servers)). Of the flags above it has \
         `--graceful-termination-timeout`\nand, with their variables, {}.\nIts own are these:\n\n\
         | Flag | Variable | Default | |\n| --- | --- | --- | --- |\n{}",
        shared.join(", "),
        own.into_iter().filter(|arg| !arg.is_hide_set()).map(row).collect::<String>(),
    )
}

fn positionals(command: &Command) -> String {
    let name = |arg: &Arg| match arg.get_num_args() {
        Some(count) if count.max_values() > 1 => " ARGS…".to_owned(),
        _ => format!(" {}", arg.get_id().as_str().to_uppercase()),
    };
    command.get_positionals().map(name).collect()
}

/// The section about exit codes, from the last paragraph of the help text.
fn exit_codes(command: &Command) -> String {
    let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let text = about.split("Exit codes: ").nth(1).unwrap_or_default().trim_end_matches('.');
    let items: String = text.split("; ").map(|item| format!("- {item}\n")).collect();
    format!("## Exit codes\n\n{items}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/flags.md");
        let written = std::fs::read_to_string(path).expect("docs/flags.md");
        assert_eq!(written, render(), "run `make docs`");
    }
}
