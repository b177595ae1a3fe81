//! The flags about the tokenizer.

use clap::Args as ClapArgs;

/// Which tokenizer is used.
#[derive(Debug, Clone, ClapArgs)]
pub struct TokenizerArgs {
    /// Local folder, tokenizer.json or Hugging Face Hub id with the tokenizer and chat template, if they are not the model's
    #[arg(long, env)]
    pub tokenizer: Option<String>,

    /// Only `auto`: the tokenizer.json, which is made from tokenizer.model where it is missing
    #[arg(long, env, default_value = "auto", value_parser = tokenizer_mode)]
    pub tokenizer_mode: TokenizerMode,
}

/// How the tokenizer is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerMode {
    /// By the fast tokenizer of Hugging Face.
    Auto,
}

fn tokenizer_mode(text: &str) -> Result<TokenizerMode, String> {
    match text {
        "auto" | "hf" => Ok(TokenizerMode::Auto),
        "slow" => {
            Err("the slow tokenizers are Python code, which the router does not run; use auto".to_owned())
        }
        "mistral" => {
            Err("tekken.json and Mistral's own templates are not read; use auto, with a model folder that \
                          has a tokenizer.json"
                .to_owned())
        }
        "custom" => Err("code of a model folder is never run; use auto".to_owned()),
        _ => Err("expected auto".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_without_a_counterpart_are_refused_with_the_reason() {
        assert_eq!(tokenizer_mode("auto"), Ok(TokenizerMode::Auto));
        for (mode, reason) in [("slow", "Python code"), ("mistral", "tekken.json"), ("custom", "never run")] {
            assert!(tokenizer_mode(mode).expect_err(mode).contains(reason));
        }
    }
}
