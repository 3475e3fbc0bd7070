//! Device graphs, and layers that come and go.

use super::{Client, decode, path};
use crate::error::Result;
use crate::live::{GraphLive, LayerKindLive, LayerLive};
use crate::model::{LayerSpec, LayerSwap};
use hyper::Method;

fn of(volume: &str) -> Result<String> {
    Ok(path("volumes", &[("volume", volume)])? + "/layers")
}

fn one(volume: &str, layer: &str) -> Result<String> {
    crate::model::check_name("layer", layer)?;
    Ok(format!("{}/{layer}", of(volume)?))
}

impl Client {
    /// The device graph of a volume.
    pub async fn graph(&self, volume: &str) -> Result<GraphLive> {
        self.get(&(path("volumes", &[("volume", volume)])? + "/graph")).await
    }

    /// The kinds of layers there are.
    pub async fn layer_kinds(&self) -> Result<Vec<LayerKindLive>> {
        self.get("/v1/layers").await
    }

    /// The layers over a volume.
    pub async fn layers(&self, volume: &str) -> Result<Vec<LayerLive>> {
        self.get(&of(volume)?).await
    }

    /// Puts a layer over a volume.
    pub async fn insert_layer(&self, volume: &str, spec: &LayerSpec) -> Result<Vec<LayerLive>> {
        self.send(Method::POST, &of(volume)?, spec).await
    }

    /// Puts another layer in the place of one.
    pub async fn swap_layer(
        &self,
        volume: &str,
        layer: &str,
        with: &LayerSwap,
    ) -> Result<Vec<LayerLive>> {
        self.send(Method::PUT, &one(volume, layer)?, with).await
    }

    /// Takes a layer off a volume.
    pub async fn remove_layer(&self, volume: &str, layer: &str) -> Result<Vec<LayerLive>> {
        decode(&self.call(Method::DELETE, &one(volume, layer)?, None).await?)
    }
}
