#include <farspan/rref/remote.h>

#include <utility>

namespace farspan::rref {

CreationState::CreationState(std::shared_ptr<Worker> worker, CallName name,
                             std::shared_ptr<Handle> handle)
    : PendingResult(std::move(worker), handle->id().rref.owner.rank, std::move(name)),
      handle_(std::move(handle)) {}

void CreationState::accept(farspan::schema::Value::Reader, Reader&) {
  handle_->table().creation_done(handle_->id());
}

void CreationState::fail(Error error) noexcept {
  handle_->table().creation_failed(handle_->id(), error);
}

}  // namespace farspan::rref
