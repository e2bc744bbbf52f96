#pragma once

#include "zero/engine/commit_copies.hpp"
#include "zero/engine/commit_search.hpp"
#include "zero/engine/engine_context.hpp"

#include <penstock/zero/engine/commit.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// The commits of an engine in its durable directory: which one the run continues from, and the next one.
///
/// A commit is made in two phases, so that every rank has the last one whole until all have the next: each rank makes
/// its bytes and its manifest durable; once all have, each drops what only the last commit needs. A process that is
/// killed in between leaves manifests of which some ranks have none: open() removes them.
///
/// Until complete() a commit is local and is made behind the trainer:
///
///     commits.begin(manifest);               // between two steps
///     commits.start();                       // the update is complete: stores homes, copies what has no place on disk
///     commits.complete();                    // before the next update: pins what is on disk, agrees with the peers
///     auto report = commits.take_outcome();
///
/// Used by the trainer's thread.
class EngineCommits {
 public:
  /// `directory` outlives the object.
  EngineCommits(EngineContext& context, RankDirectory& directory, const MemoryPlan& plan,
                std::uint32_t engine)
      : context_(context), directory_(directory), plan_(plan), engine_(engine) {}
  EngineCommits(const EngineCommits&) = delete;
  EngineCommits& operator=(const EngineCommits&) = delete;
  ~EngineCommits() {
    copies_.reset();
    count_copies();
  }

  /// Agrees with the peers on the commit from which all continue, and frees what others keep. Collective.
  ///
  /// Errors: those of search_commits() with choose_commit(), and of the files.
  Result<void> open();
  /// Makes the run, which has no commit yet, the one that a checkpoint is of, or a new one.
  void adopt(const std::optional<RankDirectory::Run>& run) {
    if (failed_ == 0) run_ = run;  // else manifests of the run may be there, on some ranks
  }
  /// Whether the run can be continued.
  [[nodiscard]] const std::optional<FoundManifest>& last() const { return last_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  [[nodiscard]] const RankDirectory::Options& where() const { return directory_.options(); }

  /// Whether a commit has begun whose outcome was not taken.
  [[nodiscard]] bool in_progress() const { return pending_.has_value(); }
  /// Whether that is not complete, so that nothing may change what it commits.
  [[nodiscard]] bool reads_states() const { return pending_ && !pending_->outcome; }
  /// Whether start() is still to be called.
  [[nodiscard]] bool waits_for_update() const { return pending_ && !pending_->started; }
  /// Begins a commit of what the tensors hold once the last update is complete, with `manifest`, whose members of the
  /// trainer are set. Precondition: none is in progress.
  void begin(Manifest manifest);
  /// Starts what can be done behind the trainer. Does nothing unless waits_for_update(). `updated`: how the last update
  /// has ended; with its error the commit fails.
  void start(const Result<void>& updated = ok());
  /// Completes the commit that was started: nothing reads the states any more, and no bytes of the one before are kept,
  /// so that the disk needs no room for three. Does nothing without such a commit. Where a rank abandons the step
  /// meanwhile, it is in progress as before, on all ranks. Collective. No gather is in flight. Blocks.
  void complete();
  /// Precondition: complete() was called, and was not interrupted.
  ///
  /// Errors, on all ranks: no_space, deadline_exceeded and io, of the files; those of the stores and of the device. The
  /// last commit is as it was, and another one can be begun.
  [[nodiscard]] Result<CommitReport> take_outcome();
  /// Releases the bytes of failed commits whose manifests can be removed now: the disk has no room for them beside
  /// those of the last commit and of the next steps. Attempts that fail are followed by pauses.
  void remove_failed();
  /// Ends the commit in progress, if any, as if it had not begun. Blocks until nothing reads the states any more.
  void give_up();

 private:
  /// A commit in progress.
  struct Pending {
    Manifest manifest;
    CommitReport report;
    TimePoint began{};
    bool started = false;
    bool has_manifest = false;  // its manifest may be there
    bool may_be_late = false;   // it may appear after the failure of writing it
    Result<void> so_far = ok();
    std::optional<Result<CommitReport>> outcome = {};  // once it is complete
  };
  /// A failed commit whose bytes stay because its manifest may be there.
  struct Unremoved {
    std::uint64_t generation = 0;
    bool may_appear = false;  // later, until another commit is complete
  };
  [[nodiscard]] std::uint64_t pin_of(std::uint64_t generation) const;
  Result<void> free_others();
  Result<void> open_copies();
  void find_committed();
  void store_homes();
  Result<void> pin_tensors(Pending& commit);
  Result<void> sync_files(swap::Runtime& runtime, const Manifest& manifest, std::uint32_t first_file) const;
  Result<void> check_is_there(const tiers::File::Properties& file) const;
  [[nodiscard]] Result<void> check_directory() const;
  Result<void> make_durable(Pending& commit);
  Result<CommitReport> complete(Pending& commit);
  /// What is left to do once all ranks have the commit; an open() does it too.
  Result<void> clean_up(const std::optional<FoundManifest>& before);
  void undo(const Pending& commit);
  void note_unremoved();
  void release(std::uint64_t generation);
  /// Counts in the engine's ledger what the files of copies hold, which have a runtime of their own.
  void count_copies();

  EngineContext& context_;
  RankDirectory& directory_;
  const MemoryPlan& plan_;
  const std::uint32_t engine_;
  std::optional<RankDirectory::Run> run_;  // none before the first commit of a new one
  std::optional<FoundManifest> last_;
  std::uint64_t failed_ = 0;               // commits since the last one, which have used their numbers up
  std::vector<std::uint64_t> superseded_;  // whose manifests may be there
  std::vector<Unremoved> unremoved_;
  TimePoint next_removal_{0};
  bool was_not_removed_ = false;  // by an attempt
  bool is_first_ = true;          // since open(), or what follows the first has failed
  std::vector<std::string> notes_;
  std::unique_ptr<CommitCopies> copies_;    // null if nothing is in memory only
  ByteCount counted_;                       // of count_copies()
  std::vector<tiers::TensorId> committed_;  // of the engine's runtime
  std::optional<Pending> pending_;
};

/// The pins of a commit in a runtime that engines share.
[[nodiscard]] std::uint64_t commit_pin(std::uint32_t engine, std::uint64_t generation);

/// What manifests of `engine` refer to in these files, which the runtime must not overwrite before
/// EngineCommits::open() has chosen one, and as long as the engine is in no process.
[[nodiscard]] std::vector<swap::PinnedExtent> committed_extents(std::uint32_t engine,
                                                                const std::vector<Manifest>& manifests,
                                                                const std::vector<swap::PathOptions>& paths);

}  // namespace penstock::zero
