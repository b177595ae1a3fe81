//! The model's default sampling parameters (`generation_config.json`), for requests that leave them out.

use super::parameters::Parameters;
use crate::base::dialect::Dialect;
use crate::engine::GenerationDefaults;

impl Parameters {
    /// Fills in the parameters that a request leaves out. Not on native routes: TGI documents a fixed default for each.
    pub fn with_defaults(self, model: &GenerationDefaults) -> Self {
        if self.dialect == Dialect::Native {
            return self;
        }
        Self {
            temperature: self.temperature.or(self.default_temperature(model)),
            top_k: self.top_k.or(model.top_k.map(i64::from)),
            top_p: self.top_p.or(model.top_p),
            min_p: self.min_p.or(model.min_p),
            typical_p: self.typical_p.or(model.typical_p),
            repetition_penalty: self.repetition_penalty.or(model.repetition_penalty),
            ..self
        }
    }

    /// 0 (greedy) if the model's default is not to sample, unless the request has a sampling parameter.
    fn default_temperature(&self, model: &GenerationDefaults) -> Option<f64> {
        let has_sampling_parameter =
            self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some() || self.typical_p.is_some();
        if model.do_sample == Some(false) && !has_sampling_parameter { Some(0.0) } else { model.temperature }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama() -> GenerationDefaults {
        GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(40),
            top_p: Some(0.9),
            min_p: Some(0.1),
            typical_p: Some(0.8),
            repetition_penalty: Some(1.1),
        }
    }

    fn empty(dialect: Dialect) -> Parameters {
        Parameters { dialect, ..Parameters::default() }
    }

    #[test]
    fn parameters_that_are_left_out_take_the_defaults_of_the_model() {
        let model = llama();
        let completions = Dialect::COMPLETIONS;
        for dialect in [Dialect::CHAT, completions, Dialect::Messages, Dialect::RESPONSES] {
            let expected = Parameters {
                temperature: model.temperature,
                top_k: model.top_k.map(i64::from),
                top_p: model.top_p,
                min_p: model.min_p,
                typical_p: model.typical_p,
                repetition_penalty: model.repetition_penalty,
                ..empty(dialect)
            };
            assert_eq!(empty(dialect).with_defaults(&model), expected);
        }
    }

    #[test]
    fn parameters_of_the_request_are_kept() {
        let given = Parameters { temperature: Some(0.0), top_p: Some(1.0), ..empty(Dialect::CHAT) };
        let filled = given.with_defaults(&llama());
        assert_eq!((filled.temperature, filled.top_p, filled.top_k), (Some(0.0), Some(1.0), Some(40)));
    }

    #[test]
    fn native_routes_keep_the_defaults_of_tgi() {
        assert_eq!(empty(Dialect::Native).with_defaults(&llama()), empty(Dialect::Native));
    }

    #[test]
    fn a_model_with_do_sample_false_is_greedy_unless_the_request_samples() {
        let greedy =
            GenerationDefaults { do_sample: Some(false), temperature: Some(0.6), ..Default::default() };
        assert_eq!(empty(Dialect::CHAT).with_defaults(&greedy).temperature, Some(0.0));
        let asked = Parameters { top_p: Some(0.5), ..empty(Dialect::CHAT) };
        assert_eq!(asked.with_defaults(&greedy).temperature, Some(0.6));
        let warm = Parameters { temperature: Some(1.5), ..empty(Dialect::CHAT) };
        assert_eq!(warm.with_defaults(&greedy).temperature, Some(1.5));
    }
}
