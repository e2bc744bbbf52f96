#include "zero/engine/engine_commits.hpp"

#include "swap/runtime_internals.hpp"
#include "tiers/io/bounded_call.hpp"
#include "zero/commit/durable_directories.hpp"
#include "zero/commit/superseded_files.hpp"
#include "zero/layout/commit_parts.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace penstock::zero {

namespace {

constexpr const char* committing = "Engine::commit";
constexpr const char* creating = "Engine::create";

CommittedTensor committed(swap::RuntimeInternals::PinnedTensor pinned, std::uint32_t first_file) {
  const tiers::TensorDescription& description = pinned.description;
  const tiers::Extent& extent = *description.extent;
  return {.key = description.key,
          .size = description.size,
          .block = description.block,
          .file = first_file + extent.path,
          .offset = extent.offset,
          .length = extent.length,
          .step = pinned.step,
          .checksums = std::move(pinned.checksums)};
}

/// That of the configuration for the swap file there; it names the directories in an order of its own.
std::optional<double> given_weight(const Config& config, const std::filesystem::path& directory) {
  const std::vector<std::filesystem::path>& directories = config.swap_directories();
  const auto found = std::find_if(directories.begin(), directories.end(), [&](const auto& one) {
    std::error_code error;
    return std::filesystem::absolute(one, error) == directory;
  });
  if (found == directories.end() || config.penstock.path_weights.size() != directories.size())
    return std::nullopt;
  return config.penstock.path_weights[static_cast<std::size_t>(found - directories.begin())];
}

std::filesystem::path file_of(const swap::PathOptions& path) {
  return path.directory / path.file_name;
}

}  // namespace

std::uint64_t commit_pin(std::uint32_t engine, std::uint64_t generation) {
  return swap::engine_generations | std::uint64_t{engine} << 48 | generation;
}

std::vector<swap::PinnedExtent> committed_extents(std::uint32_t engine,
                                                  const std::vector<Manifest>& manifests,
                                                  const std::vector<swap::PathOptions>& paths) {
  std::vector<swap::PinnedExtent> extents;
  for (const Manifest& manifest : manifests) {
    for (const CommittedTensor& tensor : manifest.tensors) {
      for (std::uint32_t path = 0; path < paths.size(); ++path) {
        if (file_of(paths[path]) != manifest.files[tensor.file]) continue;
        extents.push_back({.extent = {.path = path, .offset = tensor.offset, .length = tensor.length},
                           .generation = commit_pin(engine, manifest.generation),
                           .purpose = tensor.key.role});
      }
    }
  }
  return extents;
}

std::uint64_t EngineCommits::pin_of(std::uint64_t generation) const {
  return commit_pin(engine_, generation);
}

Result<void> EngineCommits::open() {
  find_committed();
  PENSTOCK_TRY_ASSIGN(CommitSearch search,
                      search_commits(context_, creating, directory_.options(), engine_, choose_commit));
  last_ = search.last;
  if (last_) run_ = last_->run;
  notes_ = std::move(search.notes);
  const auto prepare = [&]() -> Result<void> {
    PENSTOCK_TRY(free_others());
    if (last_) {
      if (directory_.options().rank < last_->ranks) PENSTOCK_TRY(directory_.mark(engine_, last_->run));
      PENSTOCK_TRY(remove_former_ranks(directory_.options(), engine_, *last_, context_.communicator.size()));
    }
    return open_copies();
  };
  return agree_on_outcome(context_, creating, prepare());
}

/// Commits that are not the last one of all ranks: an incomplete one, and the one before.
Result<void> EngineCommits::free_others() {
  const bool has_last = last_ && directory_.options().rank < last_->ranks;
  if (!has_last) PENSTOCK_TRY(directory_.unmark(engine_));  // first: where a mark is, a manifest must be
  PENSTOCK_TRY_ASSIGN(const auto generations, directory_.generations(engine_));
  for (const std::uint64_t generation : generations) {
    if (has_last && generation == last_->generation) {
      const auto manifest = directory_.read(engine_, generation);
      if (!manifest) return manifest.error();
      if (manifest->attempt == last_->attempt && manifest->run == last_->run) continue;
    }
    PENSTOCK_TRY(directory_.remove(engine_, generation));
    release(generation);
  }
  return ok();
}

void EngineCommits::release(std::uint64_t generation) {
  context_.internals.release_generation(pin_of(generation));
  if (copies_) swap::RuntimeInternals(copies_->runtime()).release_generation(pin_of(generation));
  count_copies();
}

void EngineCommits::count_copies() {
  using tiers::Purpose;
  using tiers::Tier;
  tiers::Ledger& ledger = context_.runtime.ledger();
  const ByteCount held =
      copies_ ? copies_->runtime().ledger().line(Tier::nvme, Purpose::commit).held : ByteCount();
  if (held > counted_) ledger.hold(Tier::nvme, Purpose::commit, held - counted_);
  if (held < counted_) ledger.give_back(Tier::nvme, Purpose::commit, counted_ - held);
  counted_ = held;
}

Result<void> EngineCommits::open_copies() {
  if (plan_.committed_copies.is_zero()) return ok();
  const RankDirectory::Options& options = directory_.options();
  std::vector<swap::PathOptions> paths;
  for (std::size_t i = 0; i < options.directories.size(); ++i) {
    swap::PathOptions path = options.copies;
    path.directory = directory_.path(i);
    path.file_name = directory_.copies_name(engine_, i);
    path.weight = given_weight(context_.config, options.directories[i]).value_or(path.weight);
    paths.push_back(std::move(path));
  }
  PENSTOCK_TRY_ASSIGN(auto manifests, committed_manifests(options));
  auto pinned = committed_extents(engine_, manifests[engine_], paths);
  PENSTOCK_TRY_ASSIGN(copies_, CommitCopies::open(context_, {.engine = engine_,
                                                             .size = plan_.committed_copies,
                                                             .paths = std::move(paths),
                                                             .pinned = std::move(pinned)}));
  count_copies();
  return ok();
}

void EngineCommits::find_committed() {
  committed_.clear();
  for (const FlatState& flat : context_.flats) {
    if (flat.shard_on_disk && commits_parameters(context_.config, *flat.layout))
      committed_.push_back(flat.shard);
    for (const TileState& tile : flat.tiles) {
      if (is_on_disk(tile.place)) committed_.push_back(tile.tensor);
    }
  }
}

void EngineCommits::begin(Manifest manifest) {
  pending_ = Pending{.manifest = std::move(manifest), .began = Clock::steady().now()};
  Manifest& made = pending_->manifest;
  made.generation = pending_->report.generation = (last_ ? last_->generation : 0) + 1 + failed_;
  if (last_) {
    made.before_generation = last_->generation;
    made.before_attempt = last_->attempt;
  }
  made.engine = engine_;
  made.rank = context_.communicator.rank();
  made.ranks = context_.communicator.size();
}

void EngineCommits::start(const Result<void>& updated) {
  if (!waits_for_update()) return;
  const TimePoint began = Clock::steady().now();
  pending_->started = true;
  pending_->so_far = updated;
  if (updated) store_homes();
  if (updated && copies_) copies_->begin();
  pending_->report.stall += Clock::steady().now() - began;
}

/// Begins to store what is committed and has its home in memory, which nothing changes before the next update.
void EngineCommits::store_homes() {
  for (const auto& [purpose, bytes] : context_.internals.begin_stores(committed_))
    context_.runtime.ledger().predict_traffic(purpose, {}, bytes);
}

/// Keeps the bytes of what is on disk, and adds it to the manifest.
Result<void> EngineCommits::pin_tensors(Pending& commit) {
  PENSTOCK_TRY(context_.name_what_keeps_room(context_.internals.end_stores(committed_)));
  const std::uint64_t pin = pin_of(commit.manifest.generation);
  for (const swap::PathReport& path : context_.runtime.paths())
    commit.manifest.files.push_back(path.file.name);
  for (const tiers::TensorId tensor : committed_) {
    PENSTOCK_TRY_ASSIGN(auto pinned, context_.internals.pin_extent(tensor, pin));
    commit.manifest.tensors.push_back(committed(std::move(pinned), 0));
    commit.report.kept += commit.manifest.tensors.back().size;
  }
  return ok();
}

void EngineCommits::give_up() {
  if (copies_) copies_->give_up();
  const bool is_complete = pending_ && pending_->outcome;
  if (pending_ && !is_complete) release(pending_->manifest.generation);
  pending_.reset();
}

/// Makes the files of a runtime durable to which the manifest refers; there they have the numbers from `first_file` on.
Result<void> EngineCommits::sync_files(swap::Runtime& runtime, const Manifest& manifest,
                                       std::uint32_t first_file) const {
  const std::vector<swap::PathReport> paths = runtime.paths();
  std::set<std::uint32_t> used;
  for (const CommittedTensor& tensor : manifest.tensors) {
    if (tensor.file >= first_file && tensor.file - first_file < paths.size())
      used.insert(tensor.file - first_file);
  }
  PENSTOCK_TRY(swap::RuntimeInternals(runtime).sync_files(used));
  for (const std::uint32_t path : used) PENSTOCK_TRY(check_is_there(paths[path].file));
  return ok();
}

/// A later process opens the file by its name. Errors: not_found.
Result<void> EngineCommits::check_is_there(const tiers::File::Properties& file) const {
  const RankDirectory::Options& options = directory_.options();
  const auto is_there =
      tiers::bounded_call<bool>(committing, file.name, options.deadline,
                                [files = options.files, handle = file.handle, name = file.name] {
                                  return files->is_named(handle, name);
                                });
  if (!is_there) return is_there.error();
  if (*is_there) return ok();
  return Error(ErrorCode::not_found, committing)
      .object(file.name)
      .reason("the file was removed, moved or replaced while the run has it open")
      .advice(
          "move it back; else end the run, and go on from the last commit or a checkpoint, if these are "
          "whole");
}

/// Whether the manifests' directory is the one that the run has opened: else one may be where that is.
Result<void> EngineCommits::check_directory() const {
  for (const swap::Runtime* const runtime : {&context_.runtime, copies_ ? &copies_->runtime() : nullptr}) {
    if (runtime == nullptr) continue;
    for (const swap::PathReport& path : runtime->paths()) {
      if (std::filesystem::path(path.file.name).parent_path() == directory_.path(0))
        return check_is_there(path.file);
    }
  }
  return ok();
}

/// Makes the bytes and the manifest of this rank durable.
Result<void> EngineCommits::make_durable(Pending& commit) {
  Manifest& manifest = commit.manifest;
  PENSTOCK_TRY(commit.so_far);
  PENSTOCK_TRY(pin_tensors(commit));
  const auto first_file = static_cast<std::uint32_t>(manifest.files.size());  // of the copies
  if (copies_) {
    swap::Runtime& runtime = copies_->runtime();
    PENSTOCK_TRY(context_.name_what_keeps_room(copies_->finish()));
    for (const swap::PathReport& path : runtime.paths()) manifest.files.push_back(path.file.name);
    for (const CommitCopies::Copy& copy : copies_->copies()) {
      PENSTOCK_TRY_ASSIGN(
          auto pinned, swap::RuntimeInternals(runtime).pin_extent(copy.tensor, pin_of(manifest.generation)));
      pinned.step = copy.step;
      manifest.tensors.push_back(committed(std::move(pinned), first_file));
      commit.report.copied += manifest.tensors.back().size;
    }
    count_copies();
  }
  PENSTOCK_TRY(sync_files(context_.runtime, manifest, 0));
  if (copies_) PENSTOCK_TRY(sync_files(copies_->runtime(), manifest, first_file));
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const CommittedTensor& a, const CommittedTensor& b) { return a.key < b.key; });
  commit.report.manifest = ByteCount(manifest.encode().size());
  commit.has_manifest = true;
  auto written = directory_.write(manifest);
  commit.may_be_late = !written && written.error().code() == ErrorCode::deadline_exceeded;
  return written;
}

void EngineCommits::complete() {
  if (!pending_ || !pending_->started || pending_->outcome) return;
  const TimePoint began = Clock::steady().now();
  auto outcome = complete(*pending_);
  const TimePoint now = Clock::steady().now();
  if (outcome) {
    outcome->stall += now - began;
    outcome->duration = now - pending_->began;
  } else if (context_.interruption) {
    pending_->report.stall += now - began;
    return;  // before the first agreement: the rank that has abandoned the step has its commit still
  }
  pending_->outcome = std::move(outcome);
}

Result<CommitReport> EngineCommits::take_outcome() {
  return *std::exchange(pending_, std::nullopt)->outcome;
}

Result<CommitReport> EngineCommits::complete(Pending& commit) {
  Manifest& manifest = commit.manifest;
  RankDirectory::Run new_run{};
  PENSTOCK_TRY(agree_on_outcome(context_, committing, ok(), &new_run));
  manifest.attempt = new_run[0];
  if (!run_) run_ = new_run;  // also if the commit fails: its manifest may stay
  manifest.run = *run_;
  const Result<void> prepared = make_durable(commit);
  // Peers may have completed it: neither the manifest nor what it refers to may go.
  if (context_.failure) return *context_.failure;
  const auto agreed = agree_on_outcome(context_, committing, prepared);
  if (context_.failure) return *context_.failure;
  if (!agreed) {
    undo(commit);
    return agreed.error();
  }
  const auto before = last_;
  last_ = found_of(manifest);
  last_->rank = 0;
  if (auto cleaned = clean_up(before); !cleaned)
    commit.report.notes.push_back("the commit is complete; of an earlier one files are left: " +
                                  cleaned.error().message());
  return commit.report;
}

/// Peers may have a manifest of this generation; without this rank's it is none.
void EngineCommits::undo(const Pending& commit) {
  const std::uint64_t generation = commit.manifest.generation;
  ++failed_;
  if (copies_) copies_->give_up();
  if (!commit.has_manifest) return release(generation);
  unremoved_.push_back({generation, commit.may_be_late});
  next_removal_ = {};
  was_not_removed_ = false;
  remove_failed();
}

void EngineCommits::remove_failed() {
  const TimePoint began = Clock::steady().now();
  if (unremoved_.empty() || began < next_removal_) return;
  const auto may_remove = check_directory();
  std::erase_if(unremoved_, [&](const Unremoved& failed) {
    if (!may_remove || failed.may_appear || !directory_.remove(engine_, failed.generation)) return false;
    release(failed.generation);
    return true;
  });
  const TimePoint now = Clock::steady().now();
  // Of the trainer's time at most a tenth. The second attempt follows at once: most errors pass.
  next_removal_ = std::exchange(was_not_removed_, true) ? now + 10 * (now - began) : now;
  note_unremoved();
}

/// For errors of no space.
void EngineCommits::note_unremoved() {
  context_.keeps_room.reset();
  if (unremoved_.empty()) return;
  const Unremoved& failed = unremoved_.front();
  const std::string name = (directory_.path(0) / manifest_name(engine_, failed.generation)).string();
  if (failed.may_appear) {
    context_.keeps_room = {
        "a commit that failed, whose manifest may appear late: " + name,
        "look at why its drive did not answer; end the run, and go on from the last commit"};
  } else {
    context_.keeps_room = {"a commit that failed, until its manifest is removed: " + name,
                           "make its directory writable, then repeat the call"};
  }
}

/// Does all that it can. Errors: the first one.
Result<void> EngineCommits::clean_up(const std::optional<FoundManifest>& before) {
  Result<void> cleaned = ok();
  const auto is_done = [&cleaned](Result<void> one) {
    const bool done = one.has_value();
    if (cleaned && !done) cleaned = std::move(one);
    return done;
  };
  // A manifest that stays, or appears later, is none of the last commit.
  if (before) superseded_.push_back(before->generation);
  for (const Unremoved& failed : std::exchange(unremoved_, {})) superseded_.push_back(failed.generation);
  note_unremoved();
  for (const std::uint64_t generation : superseded_) release(generation);
  failed_ = 0;
  if (is_first_) (void)is_done(directory_.mark(engine_, last_->run));
  std::erase_if(superseded_,
                [&](std::uint64_t generation) { return is_done(directory_.remove(engine_, generation)); });
  if (!is_first_) return cleaned;
  (void)is_done(remove_former_ranks(directory_.options(), engine_, *last_, last_->ranks));
  std::set<std::string> open;
  for (const swap::PathReport& path : context_.runtime.paths())
    open.insert(std::filesystem::path(path.file.name).filename().string());
  if (copies_) {
    for (const swap::PathReport& path : copies_->runtime().paths())
      open.insert(std::filesystem::path(path.file.name).filename().string());
  }
  (void)is_done(remove_unused_files(directory_, engine_, open));
  is_first_ = !cleaned;
  return cleaned;
}

}  // namespace penstock::zero
