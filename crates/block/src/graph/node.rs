//! A node with its parameters, as a kind of layer sees them.

use super::value::{duration, size};
use super::{GraphError, GraphErrorKind, LayerKind, NodeSpec, Value};
use weir_base::Nanos;

/// What a parameter may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ParamKind {
    /// Bytes between two bounds, in multiples of a unit.
    Size {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
        /// Divides every permitted value.
        multiple: u64,
    },
    /// A whole number between two bounds.
    Count {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A time in nanoseconds, up to an hour.
    Duration,
    /// A probability from 0 to 1.
    Chance,
    /// True or false.
    Flag,
    /// Any text but the empty one.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of these words, also written with commas.
    Choices(&'static [&'static str]),
}

/// One parameter of a kind of layer.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: ParamKind,
    /// What it is when not given, in words.
    pub if_absent: IfAbsent,
    /// What it means, in a sentence.
    pub help: &'static str,
}

/// What holds when a parameter is not given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum IfAbsent {
    /// It must be given.
    Refuse,
    /// Nothing: the kind has its own way then.
    Nothing,
    /// This, as it would be written.
    Is(&'static str),
}

impl Param {
    /// A parameter that must be given.
    pub const fn required(name: &'static str, kind: ParamKind, help: &'static str) -> Param {
        Param { name, kind, if_absent: IfAbsent::Refuse, help }
    }

    /// A parameter that may be absent.
    pub const fn optional(name: &'static str, kind: ParamKind, help: &'static str) -> Param {
        Param { name, kind, if_absent: IfAbsent::Nothing, help }
    }

    /// A parameter with a default.
    pub const fn default(
        name: &'static str,
        kind: ParamKind,
        default: &'static str,
        help: &'static str,
    ) -> Param {
        Param { name, kind, if_absent: IfAbsent::Is(default), help }
    }

    /// What it may be and what it is when not given, in words.
    pub fn describe(&self) -> String {
        let kind = match self.kind {
            ParamKind::Size { .. } => "size".to_owned(),
            ParamKind::Count { .. } => "number".to_owned(),
            ParamKind::Duration => "time".to_owned(),
            ParamKind::Chance => "probability".to_owned(),
            ParamKind::Flag => "true or false".to_owned(),
            ParamKind::Text => "text".to_owned(),
            ParamKind::Choice(words) => words.join(" or "),
            ParamKind::Choices(words) => format!("list of {}", words.join(", ")),
        };
        match self.if_absent {
            IfAbsent::Refuse => format!("{kind}; required"),
            IfAbsent::Nothing => kind,
            IfAbsent::Is(d) => format!("{kind}; {d}"),
        }
    }

    /// Says what is wrong with `value`, if anything.
    fn check(&self, value: &Value) -> Result<(), String> {
        match self.kind {
            ParamKind::Size { min, max, multiple } => {
                let n = size(value).ok_or("is not a size such as 4096, \"64KiB\" or \"1GiB\"")?;
                if n < min || n > max {
                    return Err(format!("is outside {min} to {max} bytes"));
                }
                if n % multiple != 0 {
                    return Err(format!("is not a multiple of {multiple}"));
                }
                Ok(())
            }
            ParamKind::Count { min, max } => match number(value) {
                Some(n) if n >= min && n <= max => Ok(()),
                _ => Err(format!("is not a whole number from {min} to {max}")),
            },
            ParamKind::Duration => match duration(value) {
                Some(n) if n <= 3600 * weir_base::SECONDS => Ok(()),
                Some(_) => Err("is longer than an hour".into()),
                None => Err("is not a time such as \"250us\", \"10ms\" or \"1s\"".into()),
            },
            ParamKind::Chance => match chance(value) {
                Some(x) if (0.0..=1.0).contains(&x) => Ok(()),
                _ => Err("is not a probability from 0 to 1".into()),
            },
            ParamKind::Flag => flag(value).map(|_| ()).ok_or("is not true or false".into()),
            ParamKind::Text => match value {
                Value::Text(t) if !t.is_empty() => Ok(()),
                _ => Err("is not a text".into()),
            },
            ParamKind::Choice(words) => match value {
                Value::Text(t) if words.contains(&t.as_str()) => Ok(()),
                _ => Err(format!("is not one of {}", words.join(", "))),
            },
            ParamKind::Choices(words) => match list(value) {
                Some(l) if l.iter().all(|w| words.contains(w)) => Ok(()),
                _ => Err(format!("is not a list of {}", words.join(", "))),
            },
        }
    }
}

fn number(v: &Value) -> Option<u64> {
    match v {
        Value::Number(n) => Some(*n),
        Value::Text(t) => t.parse().ok(),
        _ => None,
    }
}

fn chance(v: &Value) -> Option<f64> {
    match v {
        Value::Fraction(x) => Some(*x),
        Value::Number(n) => Some(*n as f64),
        Value::Text(t) => t.parse().ok(),
        _ => None,
    }
}

fn flag(v: &Value) -> Option<bool> {
    match v {
        Value::Flag(b) => Some(*b),
        Value::Text(t) => t.parse().ok(),
        _ => None,
    }
}

fn list(v: &Value) -> Option<Vec<&str>> {
    match v {
        Value::Text(t) => Some(t.split(',').map(str::trim).collect()),
        Value::List(l) => l
            .iter()
            .map(|v| match v {
                Value::Text(t) => Some(t.as_str()),
                _ => None,
            })
            .collect(),
        _ => None,
    }
}

/// A node of a graph as its kind sees it: names, and parameters with defaults filled in.
///
/// Graphs are validated before they are built, so the getters fail only where a kind asks for a
/// parameter that it does not [declare](LayerKind::params) as what it asks for.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    graph: &'a str,
    spec: &'a NodeSpec,
    kind: &'a dyn LayerKind,
}

impl<'a> Node<'a> {
    pub(super) fn new(graph: &'a str, spec: &'a NodeSpec, kind: &'a dyn LayerKind) -> Node<'a> {
        Node { graph, spec, kind }
    }

    /// The graph's name.
    pub fn graph(&self) -> &'a str {
        self.graph
    }

    /// The node's name.
    pub fn id(&self) -> &'a str {
        &self.spec.id
    }

    /// The name of this node's state that all cores share: graph, node and kind.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.graph, self.spec.id, self.spec.kind)
    }

    /// An error about this node.
    pub fn error(&self, kind: GraphErrorKind, message: impl Into<String>) -> GraphError {
        GraphError::new(kind, message).at(self.id())
    }

    /// Checks every parameter against the kind's list.
    pub(super) fn check_params(&self) -> Result<(), GraphError> {
        let known = self.kind.params();
        for (name, value) in &self.spec.params {
            let Some(p) = known.iter().find(|p| p.name == name) else {
                let names: Vec<_> = known.iter().map(|p| p.name).collect();
                let hint = match names.is_empty() {
                    true => "it has none".to_owned(),
                    false => format!("it has {}", names.join(", ")),
                };
                return Err(self.error(
                    GraphErrorKind::Param,
                    format!("`{}` has no parameter `{name}`; {hint}", self.kind.name()),
                ));
            };
            p.check(value).map_err(|e| {
                self.error(GraphErrorKind::Param, format!("parameter `{name}`: `{value}` {e}"))
            })?;
        }
        for p in known {
            if p.if_absent == IfAbsent::Refuse && !self.spec.params.contains_key(p.name) {
                return Err(self.error(
                    GraphErrorKind::Param,
                    format!("parameter `{}` is missing: {}", p.name, p.help),
                ));
            }
        }
        Ok(())
    }

    fn get<T>(
        &self,
        name: &str,
        as_type: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, GraphError> {
        let bad = |what: &str| {
            self.error(
                GraphErrorKind::Param,
                format!("parameter `{name}` of `{}` {what}", self.kind.name()),
            )
        };
        let p = self.kind.params().iter().find(|p| p.name == name);
        let p = p.ok_or_else(|| bad("is read but not declared"))?;
        let value = match (self.spec.params.get(name), p.if_absent) {
            (Some(v), _) => v.clone(),
            (None, IfAbsent::Is(d)) => Value::from(d),
            (None, IfAbsent::Nothing) => return Ok(None),
            (None, IfAbsent::Refuse) => return Err(bad("is missing")),
        };
        p.check(&value).map_err(|e| bad(&e))?;
        as_type(&value).map(Some).ok_or_else(|| bad("is read as another type than declared"))
    }

    fn need<T>(&self, name: &str, as_type: impl Fn(&Value) -> Option<T>) -> Result<T, GraphError> {
        self.get(name, as_type)?.ok_or_else(|| {
            self.error(GraphErrorKind::Param, format!("parameter `{name}` is missing"))
        })
    }

    /// A [`ParamKind::Size`] in bytes.
    ///
    /// # Errors
    /// Not declared so, or absent.
    pub fn size(&self, name: &str) -> Result<u64, GraphError> {
        self.need(name, size)
    }

    /// A [`ParamKind::Size`] in bytes that may be absent.
    ///
    /// # Errors
    /// Not declared so.
    pub fn size_if_given(&self, name: &str) -> Result<Option<u64>, GraphError> {
        self.get(name, size)
    }

    /// A [`ParamKind::Count`].
    ///
    /// # Errors
    /// Not declared so, or absent.
    pub fn count(&self, name: &str) -> Result<u64, GraphError> {
        self.need(name, number)
    }

    /// A [`ParamKind::Count`] that may be absent.
    ///
    /// # Errors
    /// Not declared so.
    pub fn count_if_given(&self, name: &str) -> Result<Option<u64>, GraphError> {
        self.get(name, number)
    }

    /// A [`ParamKind::Duration`] in nanoseconds.
    ///
    /// # Errors
    /// Not declared so, or absent.
    pub fn duration(&self, name: &str) -> Result<Nanos, GraphError> {
        self.need(name, duration)
    }

    /// A [`ParamKind::Chance`].
    ///
    /// # Errors
    /// Not declared so, or absent.
    pub fn chance(&self, name: &str) -> Result<f64, GraphError> {
        self.need(name, chance)
    }

    /// A [`ParamKind::Flag`].
    ///
    /// # Errors
    /// Not declared so, or absent.
    pub fn flag(&self, name: &str) -> Result<bool, GraphError> {
        self.need(name, flag)
    }

    /// A [`ParamKind::Text`] or [`ParamKind::Choice`].
    ///
    /// # Errors
    /// Not declared so, or absent.
    pub fn text(&self, name: &str) -> Result<String, GraphError> {
        self.need(name, |v| match v {
            Value::Text(t) => Some(t.clone()),
            _ => None,
        })
    }

    /// A [`ParamKind::Choices`].
    ///
    /// # Errors
    /// Not declared so, or absent.
    pub fn choices(&self, name: &str) -> Result<Vec<String>, GraphError> {
        self.need(name, |v| Some(list(v)?.into_iter().map(str::to_owned).collect()))
    }
}
