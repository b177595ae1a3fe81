//! AIP_STORAGE_URI, by which Vertex AI names the model of a deployment.

/// The folder that it names; `None` if it is not set. The error says why it cannot be used.
pub fn storage_folder(uri: Option<&str>) -> Result<Option<String>, String> {
    match uri {
        None | Some("") => Ok(None),
        Some(uri) if uri.contains("://") => Err(format!(
            "AIP_STORAGE_URI is {uri}, and nothing is downloaded from buckets; mount or copy it, and set MODEL_ID to \
             the folder"
        )),
        Some(folder) => Ok(Some(folder.to_owned())),
    }
}
