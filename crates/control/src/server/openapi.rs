//! The OpenAPI description, made from the handlers and types.

use super::{events, keys, layers, migrate, policies, protect, routes};
use std::collections::BTreeSet;
use utoipa::OpenApi;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::Operation;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Weir",
        description = "Control of one Weir node. Errors are `application/problem+json` with a stable `code`. A change that the next start takes back, since the configuration file declares the object otherwise, is answered with a `Warning` header.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        routes::list_pools,
        routes::create_pool,
        routes::get_pool,
        routes::patch_pool,
        routes::delete_pool,
        protect::force_pool,
        protect::import_pool,
        protect::release_pool,
        protect::pool_device,
        protect::get_scrub,
        protect::start_scrub,
        protect::stop_scrub,
        protect::list_snapshots,
        protect::create_snapshots,
        protect::delete_snapshot,
        policies::list_policies,
        policies::put_policies,
        protect::revert,
        protect::create_clone,
        layers::get_graph,
        layers::kinds,
        layers::list,
        layers::insert,
        layers::swap,
        layers::remove,
        migrate::list,
        migrate::get,
        migrate::start,
        migrate::tune,
        migrate::cancel,
        migrate::adopt,
        keys::rekey,
        routes::list_volumes,
        routes::create_volume,
        routes::get_volume,
        routes::patch_volume,
        routes::delete_volume,
        routes::list_hosts,
        routes::create_host,
        routes::get_host,
        routes::patch_host,
        routes::delete_host,
        routes::list_maps,
        routes::create_map,
        routes::get_map,
        routes::delete_map,
        routes::list_targets,
        routes::put_target,
        routes::get_target,
        routes::delete_target,
        routes::apply,
        routes::get_status,
        events::get_metrics,
        events::get_events,
        routes::get_openapi,
    )
)]
struct Api;

/// What the specification demands and handlers do not say: an identifier that no other operation has, a description of each answer.
fn complete(operation: &mut Operation, ids: &mut BTreeSet<String>) {
    let tag = operation.tags.as_ref().and_then(|t| t.first()).cloned().unwrap_or_default();
    if let Some(id) = &mut operation.operation_id
        && !ids.insert(id.clone())
    {
        *id = format!("{id}_{tag}");
        ids.insert(id.clone());
    }
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(r) = response
            && r.description.is_empty()
        {
            r.description = match status.as_str() {
                "default" => "What was wrong.",
                "201" => "It was made.",
                "204" => "It is gone.",
                _ => "As it is now.",
            }
            .into();
        }
    }
}

/// The description as JSON text, the same for every call of one build.
pub fn document() -> String {
    let mut api = Api::openapi();
    let mut ids = BTreeSet::new();
    for item in api.paths.paths.values_mut() {
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        all.into_iter().flatten().for_each(|o| complete(o, &mut ids));
    }
    let mut text = api.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}
