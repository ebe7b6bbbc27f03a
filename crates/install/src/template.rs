//! Helm's templates, as far as the charts use them.
//!
//! The language is Go's and comes with the library. Of the functions that Helm adds there are `quote`, `default`, `toYaml`,
//! `indent`, `add` and `lookup`. A template that uses another one can't be parsed, so a test finds it.

use gtmpl_ng::{Context, Func, FuncError, Template};
use gtmpl_value_ng::Value;

use crate::yaml;

/// Renders one file of a chart. `parts` are the templates that it may use, and `data` is its `.`.
///
/// # Errors
///
/// The engine's own words.
pub(crate) fn render(parts: &[(&str, &str)], text: &str, data: &serde_json::Value) -> Result<String, String> {
    let mut template = Template::default();
    template.add_funcs(&FUNCTIONS);
    for (name, text) in parts {
        template.add_template(*name, *text).map_err(|error| error.to_string())?;
    }
    template.parse(text).map_err(|error| error.to_string())?;
    let data: Value = serde_json::from_value(data.clone()).map_err(|error| error.to_string())?;
    let text = template.render(&Context::from(data)).map_err(|error| error.to_string())?;
    // Go's way to say that a template names something that isn't there.
    if text.contains("<no value>") {
        return Err("it uses a value that does not exist".to_owned());
    }
    Ok(text)
}

const FUNCTIONS: [(&str, Func); 6] =
    [("quote", quote), ("default", default), ("toYaml", to_yaml), ("indent", indent), ("add", add), ("lookup", lookup)];

type Result_ = Result<Value, FuncError>;

/// `quote VALUE`: in double quotes.
fn quote(arguments: &[Value]) -> Result_ {
    let [value] = exactly("quote", arguments)?;
    match value {
        Value::String(text) => {
            let quoted = serde_json::to_string(text).map_err(|error| wrong(format!("quote: {error}")))?;
            Ok(quoted.into())
        }
        Value::Number(_) | Value::Bool(_) => Ok(format!("\"{value}\"").into()),
        other => Err(wrong(format!("quote: {other} is no text"))),
    }
}

/// `default FALLBACK VALUE`: the value, unless it is empty.
fn default(arguments: &[Value]) -> Result_ {
    // A pipe from what is absent brings nothing.
    let [fallback, value] = exactly("default", arguments)?;
    Ok(if is_empty(value) { fallback.clone() } else { value.clone() })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::NoValue | Value::Nil => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Object(map) | Value::Map(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Function(_) => false,
    }
}

/// `toYaml VALUE`
fn to_yaml(arguments: &[Value]) -> Result_ {
    let [value] = exactly("toYaml", arguments)?;
    let value = serde_json::to_value(value).map_err(|error| wrong(format!("toYaml: {error}")))?;
    Ok(yaml::text(&value).map_err(|error| wrong(format!("toYaml: {error}")))?.into())
}

/// `indent SPACES TEXT`
fn indent(arguments: &[Value]) -> Result_ {
    let [spaces, text] = exactly("indent", arguments)?;
    let (Value::Number(spaces), Value::String(text)) = (spaces, text) else {
        return Err(wrong(format!("indent: wants a number and a text, not {spaces} and {text}")));
    };
    let spaces = " ".repeat(spaces.as_u64().and_then(|spaces| usize::try_from(spaces).ok()).unwrap_or(0));
    let lines: Vec<_> = text.split('\n').map(|line| format!("{spaces}{line}")).collect();
    Ok(lines.join("\n").into())
}

/// `add NUMBER NUMBER`
fn add(arguments: &[Value]) -> Result_ {
    let [one, other] = exactly("add", arguments)?;
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    let sum = number(one).zip(number(other)).and_then(|(one, other)| one.checked_add(other));
    sum.map(Value::from).ok_or_else(|| wrong(format!("add: {one} and {other} have no sum")))
}

/// `lookup VERSION KIND NAMESPACE NAME`: what the cluster has. Nothing, as with `helm template`: who applies the objects looks
/// for what is in the way.
fn lookup(arguments: &[Value]) -> Result_ {
    exactly::<4>("lookup", arguments)?;
    Ok(Value::Nil)
}

fn exactly<'a, const N: usize>(name: &str, arguments: &'a [Value]) -> Result<&'a [Value; N], FuncError> {
    arguments.try_into().map_err(|_| FuncError::ExactlyXArgs(name.to_owned(), N))
}

fn wrong(text: String) -> FuncError {
    FuncError::Generic(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(text: &str) -> Result<String, String> {
        let data = json!({"Values": {"empty": {}, "map": {"b": 1, "a": "x\"y"}, "list": ["p", "q"], "no": false, "n": 25, "s": ""}});
        render(&[("_p.tpl", "{{- define \"part\" -}}<{{ .Values.n }}>{{- end -}}")], text, &data)
    }

    #[test]
    fn the_functions_do_as_helms() {
        let same = |template: &str, text: &str| assert_eq!(rendered(template).as_deref(), Ok(text), "{template}");
        same("{{ .Values.map.a | quote }} {{ quote .Values.n }} {{ quote .Values.no }}", r#""x\"y" "25" "false""#);
        same("{{ .Values.s | default \"d\" }}{{ .Values.n | default 1 }}{{ .Values.missing | default 2 }}", "d252");
        same("a:\n{{ toYaml .Values.map | indent 2 }}", "a:\n  a: 'x\"y'\n  b: 1");
        same("{{ add .Values.n 10 }}", "35");
        same("{{ with lookup \"v1\" \"Pod\" \"\" \"x\" }}there{{ else }}not{{ end }}", "not");
        same("{{ range $k, $v := .Values.map }}{{ $k }}={{ $v }};{{ end }}", "a=x\"y;b=1;");
        same("{{ range .Values.list }}{{ . }}{{ end }}{{ with .Values.empty }}no{{ end }}", "pq");
        same("[{{ template \"part\" . }}]", "[<25>]");
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(rendered("{{ .Values.missing }}").is_err_and(|error| error.contains("does not exist")));
        assert!(rendered("{{ upper .Values.s }}").is_err_and(|error| error.contains("upper")));
        assert!(rendered("{{ quote .Values.map }}").is_err());
        assert!(rendered("{{ add .Values.s 1 }}").is_err());
    }
}
