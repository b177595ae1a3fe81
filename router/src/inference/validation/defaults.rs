//! How the model's makers have it sample, where a request does not say how.

use super::parameters::Parameters;
use crate::base::dialect::Dialect;
use crate::engine::GenerationDefaults;

impl Parameters {
    /// Fills in what was left out. Not in TGI's words: there each default is documented, whatever the model.
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

    /// Greedy where the model is to be, unless the request says how to sample.
    fn default_temperature(&self, model: &GenerationDefaults) -> Option<f64> {
        let wishes =
            self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some() || self.typical_p.is_some();
        if model.do_sample == Some(false) && !wishes { Some(0.0) } else { model.temperature }
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

    fn silent(dialect: Dialect) -> Parameters {
        Parameters { dialect, ..Parameters::default() }
    }

    #[test]
    fn what_is_left_out_is_what_the_model_says() {
        let model = llama();
        let completions = Dialect::Completions { best_of: "best_of" };
        for dialect in [Dialect::CHAT, completions, Dialect::Messages, Dialect::Responses] {
            let expected = Parameters {
                temperature: model.temperature,
                top_k: model.top_k.map(i64::from),
                top_p: model.top_p,
                min_p: model.min_p,
                typical_p: model.typical_p,
                repetition_penalty: model.repetition_penalty,
                ..silent(dialect)
            };
            assert_eq!(silent(dialect).with_defaults(&model), expected);
        }
    }

    #[test]
    fn what_is_said_stays() {
        let said = Parameters { temperature: Some(0.0), top_p: Some(1.0), ..silent(Dialect::CHAT) };
        let filled = said.with_defaults(&llama());
        assert_eq!((filled.temperature, filled.top_p, filled.top_k), (Some(0.0), Some(1.0), Some(40)));
    }

    #[test]
    fn the_words_of_tgi_keep_their_defaults() {
        assert_eq!(silent(Dialect::Native).with_defaults(&llama()), silent(Dialect::Native));
    }

    #[test]
    fn a_model_that_is_not_to_sample_is_greedy_unless_asked() {
        let greedy =
            GenerationDefaults { do_sample: Some(false), temperature: Some(0.6), ..Default::default() };
        assert_eq!(silent(Dialect::CHAT).with_defaults(&greedy).temperature, Some(0.0));
        let asked = Parameters { top_p: Some(0.5), ..silent(Dialect::CHAT) };
        assert_eq!(asked.with_defaults(&greedy).temperature, Some(0.6));
        let warm = Parameters { temperature: Some(1.5), ..silent(Dialect::CHAT) };
        assert_eq!(warm.with_defaults(&greedy).temperature, Some(1.5));
    }
}
