//! The tensors that a trainer announces: names, types and shapes in lists of the same length.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, On};
use crate::base::error::Error;
use crate::engine::trainer::Announced;

/// PyTorch's names of types, and what safetensors calls them.
const DTYPES: [(&str, &str); 16] = [
    ("float64", "F64"),
    ("float32", "F32"),
    ("float16", "F16"),
    ("bfloat16", "BF16"),
    ("float8_e4m3fn", "F8_E4M3"),
    ("float8_e5m2", "F8_E5M2"),
    ("float8_e8m0fnu", "F8_E8M0"),
    ("int64", "I64"),
    ("int32", "I32"),
    ("int16", "I16"),
    ("int8", "I8"),
    ("uint64", "U64"),
    ("uint32", "U32"),
    ("uint16", "U16"),
    ("uint8", "U8"),
    ("bool", "BOOL"),
];

/// The body of `/update_weights_from_distributed`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct UpdateWeightsFromDistributed {
    /// The tensors in the order in which they are broadcast, as they are called in the files of the model.
    pub names: Vec<String>,
    /// Their types, as PyTorch calls them.
    pub dtypes: Vec<String>,
    /// Their shapes.
    pub shapes: Vec<Vec<u64>>,
    /// The group.
    pub group_name: Option<String>,
    /// What the weights are called from now on; by default what tells them from others.
    pub weight_version: Option<String>,
    /// Requests that have begun fail; else they are computed again from their tokens.
    pub abort_all_requests: Option<bool>,
    /// How several tensors are one; not supported.
    pub load_format: Option<String>,
}

impl HasKnownFields for UpdateWeightsFromDistributed {
    const ON: On = On::UpdateWeightsFromDistributed;
}

impl UpdateWeightsFromDistributed {
    /// The tensors in the order in which they come.
    pub(super) fn announced(&self) -> Result<Vec<Announced>, Error> {
        if self.load_format.is_some() {
            return Err(Error::NotSupported("load_format"));
        }
        let num_names = self.names.len();
        if num_names == 0 {
            return Err(Error::invalid("names", "`names` must have at least one name"));
        }
        for (param, num) in [("dtypes", self.dtypes.len()), ("shapes", self.shapes.len())] {
            if num != num_names {
                let message = format!("`{param}` must be as long as `names`, {num_names}. Given: {num}");
                return Err(Error::invalid(param, message));
            }
        }
        let tensors = self.names.iter().zip(&self.dtypes).zip(&self.shapes);
        let announced = tensors.map(|((name, dtype), shape)| {
            Ok(Announced { name: name.clone(), dtype: stored(dtype)?, shape: shape.clone() })
        });
        announced.collect()
    }
}

fn stored(dtype: &str) -> Result<&'static str, Error> {
    let name = dtype.strip_prefix("torch.").unwrap_or(dtype);
    DTYPES.iter().find(|(known, _)| *known == name).map(|(_, stored)| *stored).ok_or_else(|| {
        let dtype: String = dtype.chars().take(20).collect();
        let known: Vec<&str> = DTYPES.iter().map(|(known, _)| *known).collect();
        Error::invalid("dtypes", format!("`dtypes` may have {}. Given: {dtype}", known.join(", ")))
    })
}
