//! The secret that calls over TCP bring in their metadata.

use subtle::ConstantTimeEq;
use tonic::{Request, Status};

/// Its name in the metadata of a call.
const NAME: &str = "penstock-secret";

/// The secret that callers must know.
pub struct Secret(String);

impl Secret {
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    /// Lets the call pass that has the secret; compared in constant time.
    pub fn check(&self, call: Request<()>) -> Result<Request<()>, Status> {
        let given = call.metadata().get(NAME).map_or(&[][..], |value| value.as_bytes());
        if bool::from(self.0.as_bytes().ct_eq(given)) {
            Ok(call)
        } else {
            Err(Status::unauthenticated("the secret of the replica is missing or wrong"))
        }
    }
}
