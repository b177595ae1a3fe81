//! Turns a settings struct back into the command-line arguments that parse to it. Works for any serializable struct.

use serde::Serialize;
use serde_json::Value;

/// Returns `--name=value` for every field that is set; a list gives one argument per element.
pub fn render<T: Serialize>(settings: &T) -> Vec<String> {
    let value = serde_json::to_value(settings).expect("settings are plain data");
    let Value::Object(fields) = value else { return Vec::new() };
    fields.iter().flat_map(|(name, value)| render_field(name, value)).collect()
}

fn render_field(name: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().flat_map(|item| render_field(name, item)).collect(),
        Value::String(text) => vec![format!("--{name}={text}")],
        other => vec![format!("--{name}={other}")],
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use penstock_router::config::RouterConfig;

    use super::*;

    #[derive(Debug, Parser)]
    struct Router {
        #[command(flatten)]
        config: RouterConfig,
    }

    fn parse(args: &[String]) -> RouterConfig {
        let program = std::iter::once("penstock-router".to_owned());
        Router::try_parse_from(program.chain(args.iter().cloned())).expect("rendered flags parse").config
    }

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn defaults_survive_the_round_trip() {
        let config = parse(&args("--model-id m --model-path /models/m --shard-sockets a.sock"));
        assert_eq!(parse(&render(&config)), config);
    }

    #[test]
    fn every_kind_of_value_survives_the_round_trip() {
        let mut given =
            args("--model-path=/a --shard-sockets a b --max-total-tokens 7 --json-output --port 0");
        given.extend(args("--served-model-name org/chat gpt-4o --accept-any-model"));
        given.push("--model-id=-odd name".to_owned());
        let config = parse(&given);
        assert_eq!(config.model_id, "-odd name");
        assert_eq!(config.shard_sockets.len(), 2);
        assert_eq!(config.options.names.served_model_name, ["org/chat", "gpt-4o"]);
        assert_eq!(parse(&render(&config)), config);
    }
}
