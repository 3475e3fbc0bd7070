//! Layers that were put over volumes: part of a volume, as its hosts' I/O passes them.

use super::*;
use utoipa::ToSchema;

/// Most layers over a volume.
pub const MAX_LAYERS: usize = 16;
/// Longest name of a layer.
const MAX_LAYER_NAME: usize = 32;
/// What the volume itself is called among its layers.
const UNDERMOST: &str = "volume";

/// A layer's parameters by name, as text.
pub type LayerParams = BTreeMap<String, String>;

/// A layer over a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeLayer {
    /// Its name, unique among the volume's layers.
    pub name: String,
    /// The kind of layer.
    pub kind: String,
    /// Its parameters, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: LayerParams,
    /// Tells it from others of that name: what was swapped begins with nothing of what was there.
    pub number: u32,
}

impl VolumeLayer {
    /// Its name in the device graph. Names of what a volume is made of have no point.
    pub fn node(&self) -> String {
        format!("{}.{}", self.name, self.number)
    }
}

/// A layer to put over a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// The kind of layer; `GET /v1/layers` lists them.
    pub kind: String,
    /// Its name; left out: that of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its parameters, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: LayerParams,
    /// The layer that it comes right above, `volume` for the volume itself; left out: above all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// Put it in without trying it, also if it is made to damage data.
    #[serde(default)]
    pub force: bool,
}

/// What to put in the place of a layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerSwap {
    /// The kind of layer.
    pub kind: String,
    /// Its parameters, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: LayerParams,
    /// Put it in without trying it, also if it is made to damage data.
    #[serde(default)]
    pub force: bool,
}

/// A change to the layers over a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerChange {
    /// One more.
    Insert(LayerSpec),
    /// Another one in its place, with the same name.
    Swap {
        /// The layer.
        layer: String,
        /// What takes its place.
        with: LayerSwap,
    },
    /// One less.
    Remove {
        /// The layer.
        layer: String,
    },
}

impl LayerChange {
    /// Whether it is to be done without trying the new layer.
    pub fn is_forced(&self) -> bool {
        match self {
            LayerChange::Insert(spec) => spec.force,
            LayerChange::Swap { with, .. } => with.force,
            LayerChange::Remove { .. } => false,
        }
    }
}

fn check_layer_name(name: &str) -> Result<()> {
    let wrong = |why: &str| {
        Err(Error::new(Code::InvalidName, format!("`{name}` cannot be the name of a layer"))
            .because(why)
            .hint("use 1 to 32 of a-z, 0-9, `_` and `-`, beginning with a letter or digit"))
    };
    check_name("layer", name)?;
    match name {
        UNDERMOST => wrong("that is what the volume below the layers is called"),
        n if n.contains('.') => wrong("it contains a point"),
        n if n.len() > MAX_LAYER_NAME => wrong("it is too long"),
        _ => Ok(()),
    }
}

/// The place of a layer among a volume's.
fn place_of(volume: &Volume, layer: &str) -> Result<usize> {
    volume.layers.iter().position(|l| l.name == layer).ok_or_else(|| {
        let names: Vec<&str> = volume.layers.iter().map(|l| l.name.as_str()).collect();
        let why = match names.is_empty() {
            true => "no layer was put over it".to_string(),
            false => format!("it has {}", names.join(", ")),
        };
        Error::new(Code::LayerNotFound, format!("volume `{}` has no layer `{layer}`", volume.name))
            .because(why)
            .hint(format!("`weir layer list {}` shows its layers", volume.name))
    })
}

fn words(kind: &str, params: &LayerParams) -> String {
    let all = params.iter().map(|(k, v)| format!(" {k}={v}"));
    all.fold(kind.to_string(), |text, p| text + &p)
}

impl Model {
    /// Changes the layers over a volume. Whether kinds and parameters make sense, the data plane knows.
    pub(super) fn change_layers(&mut self, name: &str, change: LayerChange) -> Result<Vec<Change>> {
        let mut volume = self.usable(name)?.clone();
        self.check_still(name)?;
        let number = volume.layers.iter().map(|l| l.number).max().unwrap_or(0) + 1;
        let text = match change {
            LayerChange::Insert(spec) => {
                let layer = spec.name.unwrap_or_else(|| spec.kind.clone());
                check_layer_name(&layer)?;
                if volume.layers.iter().any(|l| l.name == layer) {
                    return Err(Error::new(
                        Code::LayerExists,
                        format!("volume `{name}` has a layer `{layer}`"),
                    )
                    .because("names are used once only among a volume's layers")
                    .hint("give it another one with --name, or use `weir layer swap`"));
                }
                if volume.layers.len() >= MAX_LAYERS {
                    return Err(Error::new(
                        Code::TooMany,
                        format!("volume `{name}` cannot have a further layer"),
                    )
                    .because(format!("it has {MAX_LAYERS}, the most"))
                    .hint("remove one that is no longer used"));
                }
                let at = match spec.over.as_deref() {
                    None => 0,
                    Some(UNDERMOST) => volume.layers.len(),
                    Some(over) => place_of(&volume, over)?,
                };
                let text = format!(
                    "layer `{layer}` put over volume `{name}`: {}",
                    words(&spec.kind, &spec.params)
                );
                let new = VolumeLayer { name: layer, kind: spec.kind, params: spec.params, number };
                volume.layers.insert(at, new);
                text
            }
            LayerChange::Swap { layer, with } => {
                let at = place_of(&volume, &layer)?;
                let text = format!(
                    "layer `{layer}` over volume `{name}` is now {}",
                    words(&with.kind, &with.params)
                );
                volume.layers[at] =
                    VolumeLayer { name: layer, kind: with.kind, params: with.params, number };
                text
            }
            LayerChange::Remove { layer } => {
                let at = place_of(&volume, &layer)?;
                volume.layers.remove(at);
                format!("layer `{layer}` taken off volume `{name}`")
            }
        };
        self.volumes.insert(name.to_string(), volume);
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let mut m = Model::default();
        let device = DeviceSpec { kind: DeviceKind::Ram, path: None, size: Some(1 << 20) };
        let pool = PoolSpec {
            name: "p".into(),
            devices: vec![device],
            raid: None,
            overwrite: Default::default(),
            memory: None,
        };
        m.apply(Command::CreatePool(pool), 1).unwrap();
        let volume = VolumeSpec::new("v", "p", 1 << 20);
        m.apply(Command::CreateVolume(volume), 2).unwrap();
        m
    }

    fn change(m: &mut Model, change: LayerChange) -> Result<Vec<Change>> {
        m.apply(Command::ChangeLayers { name: "v".into(), change }, 0)
    }

    fn insert(m: &mut Model, kind: &str, name: Option<&str>, over: Option<&str>) -> Result<()> {
        let spec = LayerSpec {
            kind: kind.into(),
            name: name.map(Into::into),
            over: over.map(Into::into),
            ..LayerSpec::default()
        };
        change(m, LayerChange::Insert(spec)).map(drop)
    }

    fn nodes(m: &Model) -> Vec<String> {
        m.volumes["v"].layers.iter().map(VolumeLayer::node).collect()
    }

    #[test]
    fn layers_come_in_order_and_what_is_swapped_has_another_number() {
        let mut m = model();
        insert(&mut m, "delay", None, None).unwrap();
        insert(&mut m, "stats", None, None).unwrap();
        insert(&mut m, "fault", Some("f"), Some("delay")).unwrap();
        insert(&mut m, "stats", Some("low"), Some("volume")).unwrap();
        assert_eq!(nodes(&m), ["stats.2", "f.3", "delay.1", "low.4"]);
        let with = LayerSwap { kind: "stats".into(), ..LayerSwap::default() };
        let done = change(&mut m, LayerChange::Swap { layer: "f".into(), with }).unwrap();
        assert_eq!(done[0].text, "layer `f` over volume `v` is now stats");
        assert_eq!(nodes(&m), ["stats.2", "f.5", "delay.1", "low.4"]);
        change(&mut m, LayerChange::Remove { layer: "stats".into() }).unwrap();
        assert_eq!(nodes(&m), ["f.5", "delay.1", "low.4"]);
        // What was kept before there were layers, and what is kept now, is read.
        let text = serde_json::to_string(&m.volumes["v"]).unwrap();
        assert_eq!(serde_json::from_str::<Volume>(&text).unwrap(), m.volumes["v"]);
        m.volumes.get_mut("v").unwrap().layers.clear();
        let text = serde_json::to_string(&m.volumes["v"]).unwrap();
        assert!(!text.contains("layers"), "{text}");
        assert_eq!(serde_json::from_str::<Volume>(&text).unwrap(), m.volumes["v"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut m = model();
        insert(&mut m, "delay", None, None).unwrap();
        let before = m.clone();
        for (kind, name, over, code) in [
            ("delay", None, None, Code::LayerExists),
            ("delay", Some("volume"), None, Code::InvalidName),
            ("delay", Some("a.b"), None, Code::InvalidName),
            ("delay", Some(""), None, Code::InvalidName),
            ("delay", Some("x"), Some("y"), Code::LayerNotFound),
        ] {
            assert_eq!(insert(&mut m, kind, name, over).unwrap_err().code, code, "{name:?}");
        }
        let gone = LayerChange::Remove { layer: "x".into() };
        assert_eq!(change(&mut m, gone).unwrap_err().code, Code::LayerNotFound);
        assert_eq!(m, before);
        for i in 1..MAX_LAYERS {
            insert(&mut m, "stats", Some(&format!("s{i}")), None).unwrap();
        }
        assert_eq!(insert(&mut m, "stats", None, None).unwrap_err().code, Code::TooMany);
    }
}
