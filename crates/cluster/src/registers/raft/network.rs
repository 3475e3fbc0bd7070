//! The engine's own messages, by way of [`Peers`].

use super::peers::{PeerError, Peers};
use super::types::{Identity, Member, Request, Response, Types};
use core::time::Duration;
use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use std::io;
use std::sync::Arc;

/// How long a voter that does not answer is left alone. Less than an election takes.
const BACKOFF: Duration = Duration::from_millis(100);

/// Asks a voter in our terms.
pub(super) async fn ask<P: Peers>(
    peers: &P,
    identity: Identity,
    member: &Member,
    request: &Request,
    limit: Duration,
) -> Result<Response, PeerError> {
    let bytes = serde_json::to_vec(request).map_err(|e| PeerError::NotSent(e.to_string()))?;
    let answer = peers.ask(identity, member, bytes, limit).await?;
    serde_json::from_slice(&answer).map_err(|e| PeerError::Lost(e.to_string()))
}

/// Makes the ways to single voters.
pub(super) struct Network<P>(pub(super) Arc<P>);

impl<P: Peers> RaftNetworkFactory<Types> for Network<P> {
    type Network = Way<P>;

    async fn new_client(&mut self, target: Identity, node: &Member) -> Way<P> {
        Way { peers: self.0.clone(), identity: target, member: node.clone() }
    }
}

/// The way to one voter.
pub(super) struct Way<P> {
    peers: Arc<P>,
    identity: Identity,
    member: Member,
}

type Failure<E> = RPCError<Identity, Member, RaftError<Identity, E>>;

impl<P: Peers> Way<P> {
    async fn ask<E: std::error::Error>(
        &self,
        request: &Request,
        option: &RPCOption,
    ) -> Result<Response, Failure<E>> {
        let limit = option.hard_ttl();
        let asked = ask(&*self.peers, self.identity, &self.member, request, limit).await;
        match asked {
            // Its messages may be repeated, so whether this one was sent makes no difference.
            Err(e) => Err(RPCError::Unreachable(Unreachable::new(&e))),
            Ok(Response::Failed(why)) => {
                Err(RPCError::Unreachable(Unreachable::new(&io::Error::other(why))))
            }
            Ok(response) => Ok(response),
        }
    }
}

fn strange<E: std::error::Error>() -> Failure<E> {
    RPCError::Network(NetworkError::new(&io::Error::other("an answer to another question")))
}

impl<P: Peers> RaftNetwork<Types> for Way<P> {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Identity>, RPCError<Identity, Member, RaftError<Identity>>>
    {
        match self.ask(&Request::Append(rpc), &option).await? {
            Response::Append(response) => Ok(response),
            _ => Err(strange()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<
        InstallSnapshotResponse<Identity>,
        RPCError<Identity, Member, RaftError<Identity, InstallSnapshotError>>,
    > {
        match self.ask(&Request::Snapshot(rpc), &option).await? {
            Response::Snapshot(Ok(response)) => Ok(response),
            Response::Snapshot(Err(e)) => {
                Err(RemoteError::new(self.identity, RaftError::APIError(e)).into())
            }
            _ => Err(strange()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Identity>,
        option: RPCOption,
    ) -> Result<VoteResponse<Identity>, RPCError<Identity, Member, RaftError<Identity>>> {
        match self.ask(&Request::Vote(rpc), &option).await? {
            Response::Vote(response) => Ok(response),
            _ => Err(strange()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
