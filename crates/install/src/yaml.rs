//! YAML, as texts and as values.

use serde_json::Value;

/// The one document of a text; a text without any is an empty mapping, as Helm has it.
pub(crate) fn object(text: &str) -> Result<Value, String> {
    match serde_saphyr::from_str::<Option<Value>>(text) {
        Ok(None | Some(Value::Null)) => Ok(Value::Object(serde_json::Map::new())),
        Ok(Some(value)) => Ok(value),
        // The text goes on with a picture of the place.
        Err(error) => {
            let text = error.to_string();
            Err(text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
        }
    }
}

/// A value as YAML, without a newline at the end.
pub(crate) fn text(value: &Value) -> Result<String, String> {
    // Kubernetes reads YAML 1.1, in which more words than in 1.2 are truths. Quotes leave no room for that.
    let mut options = serde_saphyr::SerializerOptions::default();
    options.quote_all = true;
    options.prefer_block_scalars = false;
    options.compact_list_indent = true;
    let text = serde_saphyr::to_string_with_options(value, options).map_err(|error| error.to_string())?;
    Ok(text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let words = [
            "", "no", "on", "y", "~", "null", "0x10", "1e3", "1_000", "012", "- a", "a: b", "#", "a\nb\n", "\t",
            "é\"'\\", "*x",
        ];
        let value = json!({"words": words, "empty": {"map": {}, "list": []}, "numbers": [0, -1, 1.5, 1_000_000], "off": [true, null]});
        assert_eq!(object(&text(&value).expect("YAML")).expect("YAML"), value);
        let long = json!({"a": "word ".repeat(100)});
        assert_eq!(object(&text(&long).expect("YAML")).expect("YAML"), long);
    }

    #[test]
    fn words_that_look_like_something_else_are_quoted() {
        for word in ["no", "on", "y", "1e3", "0x10"] {
            let text = text(&json!({ "a": word })).expect("YAML");
            assert!(text.contains(&format!("\"{word}\"")) || text.contains(&format!("'{word}'")), "{text}");
        }
    }

    #[test]
    fn nothing_is_an_empty_mapping() {
        for text in ["", "# only a comment\n", "---\n"] {
            assert_eq!(object(text), Ok(json!({})), "{text:?}");
        }
        let error = object("a: [").expect_err("no YAML");
        assert!(error.starts_with("line 1 column 4: ") && !error.contains('\n'), "{error}");
    }
}
