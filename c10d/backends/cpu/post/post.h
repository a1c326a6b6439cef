// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Post: the messages between this rank and the others, of all groups.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <farspan/c10d/backends/cpu/post/line.h>
#include <farspan/c10d/backends/cpu/post/pull.h>
#include <farspan/c10d/backends/cpu/waits.h>
#include <farspan/c10d/backends/messages/inbox.h>
#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::dist::cpu {

// Where a rank gets its messages.
struct PostAddress {
  std::string endpoint;  // of a transport, as the other rank reaches it
  uint64_t token = 0;    // who connects must show it
};

// A group is of no use any more.
struct Failure {
  Error why;
  uint64_t since = 0;  // the first collective that ends with it
};

// What the post does not know itself.
struct PostWorld {
  int rank = 0;                        // this process, in the default group
  std::vector<PostAddress> addresses;  // by rank
  std::vector<std::string> names;      // "rank 3 (host:pid)"
  std::vector<bool> is_far;            // by rank: on another host
  // To those: messages from this size on go over so many lines at once.
  uint64_t stripe_bytes = 0;
  size_t stripes = 1;
  uint64_t attach_bytes = 0;  // within the host: from this size on receivers read senders' memory
  std::function<void(int)> watch;     // somebody waits long for this rank
  std::function<void(int)> on_gone;   // the line to it has ended
  std::function<void(int)> ask_fate;  // of a rank that is gone: calls explain(), soon
  std::function<WaitsFor(uint64_t group)> waits_for;  // this process; be quick
  // A rank has told that this group is of no use any more. From the thread that reads: be quick.
  std::function<void(uint64_t group, const Failure& failure)> on_failed;
};

// Up to kEagerBytes a message is sent at once. A larger one, or one that is announced, is offered,
// and its bytes travel when a receive has been found for it: straight from the one tensor into the
// other. Lines are made when they are needed, by who sends.
//
// Threading: every method from any thread. Lifetime: shared by what is under way; stop() ends it.
class Post final : public LineOwner, public std::enable_shared_from_this<Post> {
 public:
  Post(std::shared_ptr<net::Reactor> reactor, const std::shared_ptr<net::Loop>& loop);

  // Begins to listen to ranks of this host. What comes before open() waits.
  PostAddress listen();
  // And to those of other hosts.
  //   bind_host  numeric, of this host
  //   returns    the endpoint; the token is the same
  //   throws     Error kUnavailable, kInvalidArgument: no such address here
  std::string listen_to_hosts(const std::string& bind_host);
  // Before the first send() and recv().
  void open(PostWorld world);

  // See Backend. `group` is the number of the group `spec`.
  Future<int> send(uint64_t group, const GroupSpec& spec, const Message& message, Block data);
  Future<int> recv(uint64_t group, const GroupSpec& spec, const Message& message, Block data);

  // Ends what is under way in a group, and all that comes: when it returns, no tensor is touched
  // but by what has its result already or gets it at once.
  void fail(uint64_t group, const Error& why) noexcept;
  // The same, but for what is under way: for now.
  void note_failure(uint64_t group, const Error& why) noexcept;
  // Tells another rank that a group has failed, if there is a line to it, or one `may_dial`. Does
  // not block.
  void tell_failure(uint64_t group, int rank, const Failure& failure, bool may_dial) noexcept;
  // For whom another rank waits in a group's collectives; nothing: it has not answered in time.
  std::optional<WaitsFor> ask_waits(uint64_t group, int rank, Deadline deadline) noexcept;
  // This rank has left a group: what is under way here ends, and others are told.
  void leave(uint64_t group, const GroupSpec& spec) noexcept;
  // A connection to a rank, of this or another kind, has ended: calls on_gone(), soon.
  void suspect(int rank) noexcept;
  // A rank is gone: so is what needs it.
  void lose(int rank) noexcept;

  // Whether a rank has said that it has left a group.
  bool has_left(uint64_t group, int rank) const noexcept;
  // Why a rank is gone: it had left the job, or has died.
  void explain(int rank, bool has_left) noexcept;

  // What was sent leaves first, for `at_most` in all.
  void stop(Millis at_most) noexcept;

  // For what waits: by the deadline, or ended because its own has passed.
  bool wait(Sending& sending, Deadline deadline);
  class Waiting;  // a receive of this post's
  bool wait(Waiting& receive, Deadline deadline);

  // LineOwner
  void on_letter(Line& line, const Letter& letter, std::span<const std::byte> rest,
                 std::vector<Ending>& endings) override;
  std::shared_ptr<Filling> find(const Line& line, uint64_t offer) override;
  void on_filled(const Line& line, uint64_t offer, std::vector<Ending>& endings) override;
  void on_sent(const Sending& sending) override;
  void on_end(Line& line, const Error& why) override;

 private:
  struct Content {                 // of a message that nobody has asked for
    std::vector<std::byte> bytes;  // of an eager one; else:
    uint64_t offer = 0;
    std::shared_ptr<Line> line = nullptr;  // null: from this rank to itself
    std::optional<Origin> origin = {};
  };
  using Inbox = messages::Inbox<Content>;
  using Receive = messages::Receive;
  struct Box {  // of one group
    Inbox inbox;
    std::vector<int> ranks;  // empty: messages have come, and this rank has not used it yet
    std::set<int> left;      // who has left it, by rank in the default group
    std::set<int> asked;     // who would have told that
    std::set<int> told;      // whose death a receive from anyone has ended with
  };
  // What follows from what was decided under the lock, and is done without it.
  struct Doing {
    struct Reply {
      std::shared_ptr<Line> line;
      Letter letter;
      std::string text;
    };
    struct Copy {
      std::shared_ptr<Sending> from;  // this rank's own, or:
      std::vector<std::byte> bytes;
      int sender;
      std::shared_ptr<Receive> to;
    };
    std::vector<Ending> endings;
    std::vector<Reply> replies;
    std::vector<Copy> copies;
    std::vector<std::pair<std::shared_ptr<Line>, uint64_t>> claims;
    std::vector<std::shared_ptr<Pull>> pulls;
    std::vector<int> unexplained;  // who is gone, and may have left without a word to this rank
    std::shared_ptr<Sending> accepted;  // a message of this rank's, which can be written now
  };
  struct Looks {  // what look() does without the lock
    std::set<int> watched;
    std::set<std::pair<uint64_t, int>> asked;
  };
  enum class Fate { kAsked, kLeft, kDied };
  using FillingKey = std::pair<int, uint64_t>;  // the sender, in the default group, and its offer

  std::unique_ptr<transport::Listener> listen_by(transport::Transport& transport,
                                                 const std::string& bind_host);
  void add_visitor(std::unique_ptr<transport::Stream> stream);
  std::shared_ptr<Line> line_to(int rank);
  Future<int> send_to_itself(uint64_t group, const GroupSpec& spec, const Message& message,
                             Block data, const messages::Envelope& envelope);
  std::shared_ptr<Sending> sending_of(uint64_t group, const GroupSpec& spec, const Message& message,
                                      Block data);
  // By which answers about what came on a line go to its rank: this rank's own line, if there is
  // one, since who sends both ways waits for what comes on that.
  std::shared_ptr<Line> answers_locked(const std::shared_ptr<Line>& line) const
      FARSPAN_REQUIRES(mutex_);
  std::shared_ptr<Line> visitor_locked(int rank) const FARSPAN_REQUIRES(mutex_);
  std::shared_ptr<Line> make_line_locked(int rank) FARSPAN_REQUIRES(mutex_);
  // The lines on which an accepted message leaves: more than one where it is large and goes far.
  std::vector<std::shared_ptr<Line>> lines_for(const Sending& sending);
  std::vector<std::shared_ptr<Line>> all_lines_locked(int rank) const FARSPAN_REQUIRES(mutex_);
  void dial(const std::shared_ptr<Line>& line, int rank,
            std::function<void(const Error&)> on_failure);
  void dial_stripe(const std::shared_ptr<Line>& line, int rank);
  void greet(Line& line, const Letter& hello);

  Box& box_locked(uint64_t group, const GroupSpec& spec) FARSPAN_REQUIRES(mutex_);
  // Before a receive from anyone ends with somebody's death: false, while the death is none for
  // sure.
  bool is_explained_locked(const Box& box, Doing& doing) FARSPAN_REQUIRES(mutex_);
  // Why nothing in this group can be sent or received here any more.
  std::optional<Error> why_ended_locked(uint64_t group) const FARSPAN_REQUIRES(mutex_);
  std::optional<Error> why_none_locked(uint64_t group, const Receive& receive, Doing& doing)
      FARSPAN_REQUIRES(mutex_);
  // Who died and ends receives from anyone: those that wait, or else the next one. Later ones go on
  // with who is left.
  std::optional<int> untold_death_locked(const Box& box) const FARSPAN_REQUIRES(mutex_);
  void note_told_locked(Box& box) FARSPAN_REQUIRES(mutex_);
  bool has_left_locked(const Box& box, int rank) const FARSPAN_REQUIRES(mutex_);
  bool has_left_job_locked(int rank) const FARSPAN_REQUIRES(mutex_);
  bool is_absent_locked(const Box& box, int place) const FARSPAN_REQUIRES(mutex_);
  Error absent_locked(const Box& box, int place) const FARSPAN_REQUIRES(mutex_);
  std::optional<Error> why_unsent_locked(uint64_t group, const GroupSpec& spec, int place) const
      FARSPAN_REQUIRES(mutex_);
  // An eager message of so many bytes has left the inbox, and counts no more.
  //   line  by which it came; null: from this rank to itself
  void claim_locked(const std::shared_ptr<Line>& line, uint64_t bytes, Doing& doing)
      FARSPAN_REQUIRES(mutex_);
  // False when the line has ended.
  bool offer_locked(Line& line, const std::shared_ptr<Sending>& sending) FARSPAN_REQUIRES(mutex_);
  void match_locked(Inbox::Arrived message, const std::shared_ptr<Receive>& receive, Doing& doing)
      FARSPAN_REQUIRES(mutex_);
  // All but telling who waits, and what takes long.
  void perform(Doing& doing);
  void perform_and_tell(Doing& doing) noexcept;

  class PullTask;
  void pull(const std::shared_ptr<Pull>& message, Deadline deadline);
  void pull_by_threads(const std::shared_ptr<Pull>& message);
  void end_pull(const Pull& message, bool taken);
  void taken(const Line& line, const Letter& letter, Doing& doing);
  void write_accepted(const std::shared_ptr<Sending>& sending);
  void message_came(Line& line, const Letter& letter, std::span<const std::byte> rest,
                    Doing& doing);
  void withdrawn(const Line& line, const Letter& letter, std::span<const std::byte> rest,
                 Doing& doing);
  static void check_answer(const Line& line, const Sending& sending);
  void refused(const Line& line, const Letter& letter, std::span<const std::byte> text,
               Doing& doing);
  void note_left(uint64_t group, int rank, Doing& doing);
  void end_all(uint64_t group, const Error& why, const Error& why_others) noexcept;
  static Doing::Reply refusal_of(std::shared_ptr<Line> line, uint64_t offer, const Error& why);
  Error has_left() const;  // this rank, as others are told
  void refuse_all_locked(Box& box, const Error& why, bool has_left_group, Doing& doing)
      FARSPAN_REQUIRES(mutex_);
  void end_hopeless_locked(uint64_t group, Doing& doing) FARSPAN_REQUIRES(mutex_);

  // Looking after those whose time has passed, or who wait long.
  bool expire(Sending& sending, Deadline deadline);
  bool expire(Waiting& receive, Deadline deadline);
  bool withdraw_locked(Sending& sending, Doing& doing) FARSPAN_REQUIRES(mutex_);
  bool withdraw_locked(Waiting& receive) FARSPAN_REQUIRES(mutex_);
  void withdraw_if_locked(const std::function<bool(const Sending&)>& condition,
                          const std::function<Error(const Sending&)>& why, Doing& doing)
      FARSPAN_REQUIRES(mutex_);
  void give_up_if_locked(const std::function<bool(int from, const Waiting&)>& condition,
                         const std::function<Error(const Waiting&)>& why, Doing& doing)
      FARSPAN_REQUIRES(mutex_);
  void suspect_soon(int rank, Deadline deadline) noexcept;
  void look_at_suspect(int rank, Deadline deadline) noexcept;
  void look_soon_locked() FARSPAN_REQUIRES(mutex_);
  void look();
  // Adds who should be watched, and asked whether they have left the group.
  bool look_at_locked(uint64_t group, Box& box, Looks& looks, Doing& doing)
      FARSPAN_REQUIRES(mutex_);
  void ask_whether_left(uint64_t group, int rank);
  Error late(const Sending& sending) const;
  Error late(const Receive& receive) const;
  Error gone(int rank) const;
  const std::string& name_of(int rank) const;

  const std::shared_ptr<net::Reactor> reactor_;
  const std::unique_ptr<transport::Transport> shm_, tcp_;  // within the host, and to others
  std::unique_ptr<transport::Listener> listener_, hosts_listener_;
  uint64_t token_ = 0;
  PostWorld world_;  // constant after open(), before which no line is read

  std::atomic<uint64_t> next_offer_{1};
  mutable Mutex mutex_;
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool opened_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<transport::Stream>> early_ FARSPAN_GUARDED_BY(mutex_);
  bool looking_ FARSPAN_GUARDED_BY(mutex_) = false;  // look() will come
  std::map<uint64_t, Box> boxes_ FARSPAN_GUARDED_BY(mutex_);
  std::set<uint64_t> left_ FARSPAN_GUARDED_BY(mutex_);           // groups
  std::map<uint64_t, Error> failed_ FARSPAN_GUARDED_BY(mutex_);  // groups
  std::set<int> gone_ FARSPAN_GUARDED_BY(mutex_);
  std::map<int, Fate> fates_ FARSPAN_GUARDED_BY(mutex_);  // of those, where it matters
  std::map<int, std::shared_ptr<Line>> lines_ FARSPAN_GUARDED_BY(mutex_);  // dialled, by rank
  // Dialled, too: only parts of large messages travel there.
  std::multimap<int, std::shared_ptr<Line>> stripes_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Line>> visitors_ FARSPAN_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<Sending>> offers_ FARSPAN_GUARDED_BY(mutex_);
  std::map<FillingKey, std::shared_ptr<Filling>> fillings_ FARSPAN_GUARDED_BY(mutex_);
  std::map<uint64_t, Promise<WaitsFor>> questions_ FARSPAN_GUARDED_BY(mutex_);  // of ask_waits()
  // Of eager messages from this rank to itself that nobody has asked for.
  uint64_t own_unclaimed_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace farspan::dist::cpu
