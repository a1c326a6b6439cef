// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Post::Waiting: a receive that knows its post, which reads while somebody waits for it.
#pragma once

#include <memory>
#include <utility>

#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/cpu/post/pull.h>

namespace farspan::dist::cpu {

class Post::Waiting final : public messages::Receive {
 public:
  Waiting(std::shared_ptr<Post> post, uint64_t group_id, int from_rank, const Message& message,
          Block data)
      : Receive(message, data), group(group_id), rank(from_rank), post_(std::move(post)) {}

  const uint64_t group;
  const int rank;            // from whom, in the default group; -1: any
  std::weak_ptr<Pull> pull;  // under the post's lock: what brings its message

 protected:
  bool block(Deadline deadline) override { return post_->wait(*this, deadline); }

 private:
  const std::shared_ptr<Post> post_;
};

}  // namespace farspan::dist::cpu
