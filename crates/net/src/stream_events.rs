//! Events for which the socket of a connection is registered with epoll, in the old process of a hand-over
//! and in the new one.

use rustix::event::epoll::EventFlags;

/// Events of every stream; room to write is added when it is awaited.
pub(crate) const STREAM_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::PRI);
