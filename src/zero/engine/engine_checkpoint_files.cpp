// The calls of the engine that copy a run to a directory and continue it from there: save_checkpoint, load_checkpoint.

#include "zero/commit/checkpoint_directory.hpp"
#include "zero/commit/copy_commit.hpp"
#include "zero/engine/engine_state.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

constexpr const char *saving = "Engine::save_checkpoint", *loading = "Engine::load_checkpoint";

Error no_name(const char* operation) {
  return Error::invalid_argument(operation).object("directory").reason("its name is empty");
}

/// Errors, on all ranks: already_exists; invalid_argument, for a directory of another kind.
Result<void> check_new(EngineContext& context, CheckpointDirectory& checkpoints, std::uint32_t engine) {
  const std::uint64_t step = context.completed_steps;
  PENSTOCK_TRY(agree_on_outcome(context, saving, checkpoints.check_usable()));
  PENSTOCK_TRY_ASSIGN(const auto whole, whole_commit(context, saving, checkpoints.part_of(step), engine));
  if (!whole) return ok();
  return Error(ErrorCode::already_exists, saving)
      .object(checkpoints.path_of(step).string())
      .reason("there is a checkpoint of this step")
      .advice("save after another step, remove it, or name another directory");
}

/// Removes the oldest complete checkpoints of the run. Returns their paths. Collective.
Result<std::vector<std::filesystem::path>> remove_old(EngineContext& context,
                                                      CheckpointDirectory& checkpoints, std::uint32_t engine,
                                                      const RankDirectory::Run& run, std::uint32_t keep) {
  const auto mine = checkpoints.parts(context.completed_steps, engine, run);
  PENSTOCK_TRY(agree_on_outcome(context, saving, mine ? ok() : Result<void>(mine.error())));
  PENSTOCK_TRY_ASSIGN(const auto by_rank, exchange_lists(context, *mine));
  std::vector<CheckpointPart> all;
  for (const auto& of_rank : by_rank) all.insert(all.end(), of_rank.begin(), of_rank.end());
  std::vector<std::filesystem::path> removed;
  Result<void> outcome = ok();
  for (const std::uint64_t step : old_checkpoints(all, keep)) {
    if (outcome) outcome = checkpoints.remove_parts(step, engine);
    removed.push_back(checkpoints.path_of(step));
  }
  PENSTOCK_TRY(agree_on_outcome(context, saving, outcome));
  return removed;
}

}  // namespace

/// One rank would remove the checkpoint that another one has not replaced. Collective.
Result<void> EngineState::check_same_arguments(const std::filesystem::path& directory, std::uint32_t keep) {
  const std::string& name = directory.native();
  const std::array mine{XXH3_64bits(name.data(), name.size()), std::uint64_t{keep}};
  std::vector<std::array<std::uint64_t, 2>> all(context_.communicator.size());
  PENSTOCK_TRY(context_.exchange(ConstHostSpan(std::span(mine)), HostSpan(std::span(all)),
                                 CollectiveSignature::Subject::checkpoint));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    return Error::invalid_argument(saving)
        .object(all[rank][0] == all.front()[0] ? "options.keep" : "directory")
        .reason("rank " + std::to_string(rank) + " has passed another one than rank 0")
        .got(directory.string() + ", keep " + std::to_string(keep))
        .advice("pass the same on all ranks: each makes a subdirectory of its own");
  }
  return ok();
}

Result<SavedCheckpoint> EngineState::save_checkpoint(const std::filesystem::path& directory,
                                                     const SaveOptions& options) {
  const TimePoint began = Clock::steady().now();
  SavedCheckpoint saved;
  PENSTOCK_TRY(check_commit(saving, options.client));
  PENSTOCK_TRY(finish_moves());
  PENSTOCK_TRY(check_same_arguments(directory, options.keep));
  if (directory.empty()) return no_name(saving);
  const RankDirectory::Options& durable = commits_->where();
  const std::uint32_t engine = options_.engine_number;
  const std::uint64_t step = context_.completed_steps;
  CheckpointDirectory checkpoints({.files = durable.files,
                                   .directory = directory,
                                   .rank = durable.rank,
                                   .ranks = context_.communicator.size(),
                                   .deadline = durable.deadline});
  PENSTOCK_TRY(check_new(context_, checkpoints, engine));
  PENSTOCK_TRY_ASSIGN(saved.commit, commit(options.client));
  saved.path = checkpoints.path_of(step);

  std::unique_ptr<RankDirectory> part;  // locked until `latest` names the checkpoint
  const auto copy = [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(part, checkpoints.open(step, engine));
    PENSTOCK_TRY_ASSIGN(const Manifest committed, manifest_of(durable, engine, *commits_->last()));
    PENSTOCK_TRY_ASSIGN(const CopiedCommit copied,
                        copy_commit(*durable.files, committed, part->path(0) / tensors_name(engine)));
    saved.cloned = copied.cloned;
    saved.written = copied.written;
    return part->write(copied.manifest);
  };
  const Result<void> copied = copy();
  if (auto agreed = agree_on_outcome(context_, saving, copied); !agreed) {
    // Peers may have their parts; without this rank's it is no checkpoint. Where they do not answer it may be one.
    if (part && !context_.failure) checkpoints.remove_own(step, engine);
    return agreed.error();
  }
  auto named = checkpoints.set_latest(step);
  if (!named) named = std::move(named).error().note("complete " + saved.path.string() + ", by its own name");
  PENSTOCK_TRY(agree_on_outcome(context_, saving, named));
  if (options.keep > 0) {
    PENSTOCK_TRY_ASSIGN(saved.removed,
                        remove_old(context_, checkpoints, engine, commits_->last()->run, options.keep));
  }
  saved.duration = Clock::steady().now() - began;
  return saved;
}

Result<Resumed> EngineState::load_checkpoint(const std::filesystem::path& directory) {
  PENSTOCK_TRY(check_restorable(loading));
  PENSTOCK_TRY(check_new_run(loading));
  PENSTOCK_TRY(finish_moves());
  const TimePoint deadline = std::chrono::seconds(options_.config.penstock.io_deadline_seconds);
  tiers::FileSystem* const files = commits_ ? commits_->where().files : &tiers::real_file_system();
  const std::uint32_t rank = context_.communicator.rank();
  const auto found =
      directory.empty()
          ? Result<std::filesystem::path>(no_name(loading))
          : CheckpointDirectory({.files = files, .directory = directory, .rank = rank, .deadline = deadline})
                .find(loading);
  PENSTOCK_TRY(agree_on_outcome(context_, loading, found ? ok() : Result<void>(found.error())));
  const RankDirectory::Options where{
      .files = files, .directories = {*found}, .rank = rank, .deadline = deadline};
  PENSTOCK_TRY_ASSIGN(CommitSearch search,
                      search_commits(context_, loading, where, options_.engine_number, choose_checkpoint));
  if (!search.last) {
    return Error(ErrorCode::not_found, loading)
        .object(found->string())
        .reason("it has no checkpoint of engine " + std::to_string(options_.engine_number) + " of all ranks")
        .advice(
            "`penstock inspect` prints what it has; engines that save at different steps have a directory "
            "each");
  }
  const auto manifest = manifest_of(where, options_.engine_number, *search.last);
  Result<void> usable = manifest ? ok() : Result<void>(manifest.error());
  if (manifest && !is_checkpoint(*manifest)) {
    usable =
        Error::invalid_argument(loading)
            .object(found->string())
            .reason("it is a durable directory, whose run may overwrite what is read")
            .advice(
                "name it as penstock.durable_directory and resume from it, or save a checkpoint of its run");
  }
  PENSTOCK_TRY(agree_on_outcome(context_, loading, usable));
  Resumed resumed{.notes = std::move(search.notes)};
  PENSTOCK_TRY(restore_commit(loading, where, *search.last, resumed));
  if (commits_) commits_->adopt(search.last->run);
  return resumed;
}

}  // namespace penstock::zero
