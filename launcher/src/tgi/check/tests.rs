//! Tests of how command lines and variables of TGI are treated.

use super::*;

fn findings(line: &str, variables: &[(&str, &str)]) -> (bool, Vec<(String, &'static str, String)>) {
    let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let report = check(&line, &variables);
    let findings = report.arguments.into_iter().filter(|finding| finding.status != "not given");
    (report.is_accepted, findings.map(|finding| (finding.argument, finding.status, finding.note)).collect())
}

fn statuses(line: &str, variables: &[(&str, &str)]) -> Vec<(String, &'static str)> {
    findings(line, variables).1.into_iter().map(|(argument, status, _)| (argument, status)).collect()
}

fn named(expected: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    expected.iter().map(|(argument, status)| ((*argument).to_owned(), *status)).collect()
}

#[test]
fn every_argument_has_one_status_in_the_order_given() {
    let line = "text-generation-launcher --model-id m -p 80 --max-input-length=7 --trust-remote-code --quantize awq \
                --tokenizer-name t --device cpu --guess 3 stray";
    assert_eq!(
        statuses(line, &[]),
        named(&[
            ("--model-id", "kept"),
            ("-p", "kept"),
            ("--max-input-length", "renamed"),
            ("--trust-remote-code", "no effect"),
            ("--quantize", "kept"),
            ("--tokenizer-name", "refused"),
            ("--device", "kept"),
            ("--guess", "unknown"),
            ("stray", "unknown"),
        ])
    );
    assert!(!findings(line, &[]).0);
    assert!(findings("--model-id m -p80 --env --sharded true --json-output", &[]).0);
}

#[test]
fn a_value_that_the_parser_refuses_is_refused_with_its_message() {
    let (accepted, found) = findings("--kv-cache-dtype fp8_e5m2", &[]);
    assert!(!accepted);
    assert_eq!(found[0].1, "refused");
    assert!(
        found[0].2.contains("invalid value 'fp8_e5m2'") && found[0].2.contains("fp8_e4m3fn"),
        "{found:?}"
    );
    assert_eq!(statuses("--port", &[]), named(&[("--port", "refused")]));
}

#[test]
fn what_is_off_is_no_reason_to_refuse() {
    assert!(findings("--quantize= --ngrok false", &[("QUANTIZE", ""), ("TOKENIZER_NAME", "")]).0);
    assert!(findings("--tokenizer-name= --ngrok false", &[]).0);
}

#[test]
fn variables_that_are_set_are_explained_and_flags_win_over_them() {
    let set = [
        ("HF_MODEL_ID", "m"),
        ("HOSTNAME", "pod-7"),
        ("MAX_INPUT_LENGTH", "7"),
        ("PATH", "/bin"),
        ("PORT", "80"),
        ("PREFIX_CACHING", "0"),
        ("ROCM_USE_X", "1"),
    ];
    assert_eq!(
        statuses("--port 81", &set),
        named(&[
            ("--port", "kept"),
            ("HF_MODEL_ID", "renamed"),
            ("HOSTNAME", "no effect"),
            ("MAX_INPUT_LENGTH", "renamed"),
            ("PORT", "no effect"),
            ("PREFIX_CACHING", "kept"),
            ("ROCM_USE_X", "no effect"),
        ])
    );
}

#[test]
fn contradictory_flags_are_reported_once_each_flag_is_valid() {
    let together = |line: &str, variables: &[(&str, &str)]| {
        let (accepted, mut found) = findings(line, variables);
        found.pop().filter(|last| last.0 == "together").map(|last| (accepted, last.2))
    };
    let (accepted, note) = together("--sharded false --num-shard 2", &[]).expect("contradicts");
    assert!(!accepted && note.contains("--sharded false contradicts --num-shard 2"), "{note}");
    let (_, note) = together("--revision main", &[]).expect("needs a model");
    assert!(note.contains("--model-id"), "{note}");
    assert_eq!(together("--revision main", &[("MODEL_ID", "m")]), None);
}

#[test]
fn defaults_that_differ_are_reported_where_the_flag_is_not_given() {
    let not_given = |line: &str| {
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let findings = check(&line, &BTreeMap::new()).arguments.into_iter();
        findings.filter(|finding| finding.status == "not given").count()
    };
    assert_eq!(not_given("--model-id m --hostname 0.0.0.0 --cors-allow-origin *"), 0);
    assert_eq!(not_given("--port 80"), OTHER_DEFAULTS.len());
}

#[test]
fn columns_are_aligned_and_no_value_is_shown() {
    let line = ["--api-key", "hidden", "-p", "80"].map(str::to_owned);
    let text = check(&line, &BTreeMap::new()).to_string();
    assert!(!text.contains("hidden"), "{text}");
    let columns: Vec<_> = text.lines().take(2).map(|line| line.find("kept")).collect();
    assert_eq!(columns[0], columns[1], "{text}");
}
