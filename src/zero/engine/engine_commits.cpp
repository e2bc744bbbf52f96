#include "zero/engine/engine_commits.hpp"

#include "zero/layout/commit_parts.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace penstock::zero {

namespace {

constexpr const char* committing = "Engine::commit";
constexpr const char* creating = "Engine::create";

std::filesystem::path file_of(const swap::PathOptions& path) {
  return path.directory / path.file_name;
}

}  // namespace

std::uint64_t commit_pin(std::uint32_t engine, std::uint64_t generation) {
  return (std::uint64_t{engine} << 48) | generation;
}

Result<std::vector<swap::PinnedExtent>> committed_extents(const RankDirectory& directory,
                                                          std::uint32_t engine,
                                                          const std::vector<swap::PathOptions>& paths) {
  std::vector<swap::PinnedExtent> extents;
  PENSTOCK_TRY_ASSIGN(const auto generations, directory.generations(engine));
  for (const std::uint64_t generation : generations) {
    const auto manifest = directory.read(engine, generation);
    if (!manifest) continue;
    for (const CommittedTensor& tensor : manifest->tensors) {
      for (std::uint32_t path = 0; path < paths.size(); ++path) {
        if (file_of(paths[path]) != manifest->files[tensor.file]) continue;
        extents.push_back({.extent = {.path = path, .offset = tensor.offset, .length = tensor.length},
                           .generation = commit_pin(engine, generation),
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
  PENSTOCK_TRY_ASSIGN(CommitSearch search, search_commits(context_, creating, directory_.options(), engine_));
  last_ = search.last;
  notes_ = std::move(search.notes);
  Result<void> mine = free_others();
  if (mine) mine = open_copies();
  return agree_on_outcome(context_, creating, mine);
}

/// Commits that are not the last one of all ranks: an incomplete one, and the one before.
Result<void> EngineCommits::free_others() {
  PENSTOCK_TRY_ASSIGN(const auto generations, directory_.generations(engine_));
  for (const std::uint64_t generation : generations) {
    const bool is_last = last_ && generation == last_->generation && directory_.options().rank < last_->ranks;
    if (is_last) {
      const auto manifest = directory_.read(engine_, generation);
      if (manifest && manifest->attempt == last_->attempt && manifest->run == last_->run) continue;
    }
    PENSTOCK_TRY(directory_.remove(engine_, generation));
    release(generation);
  }
  return ok();
}

void EngineCommits::release(std::uint64_t generation) {
  context_.runtime.release_generation(pin_of(generation));
  if (copies_) copies_->runtime().release_generation(pin_of(generation));
}

Result<void> EngineCommits::open_copies() {
  if (plan_.committed_copies.is_zero()) return ok();
  const RankDirectory::Options& options = directory_.options();
  std::vector<swap::PathOptions> paths;
  for (std::size_t i = 0; i < options.directories.size(); ++i) {
    swap::PathOptions path = options.copies;
    path.directory = directory_.path(i);
    path.file_name = "copies" + std::to_string(engine_) + "-" + std::to_string(i);
    path.weight = options.directories.size() == 1 ? 1 : 0;
    paths.push_back(std::move(path));
  }
  PENSTOCK_TRY_ASSIGN(auto pinned, committed_extents(directory_, engine_, paths));
  PENSTOCK_TRY_ASSIGN(copies_, CommitCopies::open(context_, {.engine = engine_,
                                                             .size = plan_.committed_copies,
                                                             .paths = std::move(paths),
                                                             .pinned = std::move(pinned)}));
  return ok();
}

void EngineCommits::describe(const swap::Runtime& of, tiers::TensorId tensor, std::uint64_t step,
                             std::uint32_t first_file, Manifest& manifest) const {
  const tiers::TensorDescription description = of.describe(tensor);
  const tiers::Extent& extent = *description.extent;
  CommittedTensor committed{.key = description.key,
                            .size = description.size,
                            .block = description.block,
                            .file = first_file + extent.path,
                            .offset = extent.offset,
                            .length = extent.length,
                            .step = step};
  const tiers::BlockTable& blocks = swap::RuntimeInternals(const_cast<swap::Runtime&>(of)).blocks(tensor);
  for (std::size_t block = 0; block < blocks.block_count(); ++block)
    committed.checksums.push_back(blocks.record(block).hash);
  manifest.tensors.push_back(std::move(committed));
}

/// Calls `visit` with each tensor of the engine's runtime that is committed, and returns its first error.
template <class Visit>
static Result<void> for_committed(const EngineContext& context, const Visit& visit) {
  for (const FlatState& flat : context.flats) {
    if (flat.shard_on_disk && commits_parameters(context.config, *flat.layout))
      PENSTOCK_TRY(visit(flat.shard));
    for (const TileState& tile : flat.tiles) {
      if (tile.on_disk) PENSTOCK_TRY(visit(tile.tensor));
    }
  }
  return ok();
}

Result<void> EngineCommits::pin_tensors(std::uint64_t pin) {
  PENSTOCK_TRY(for_committed(
      context_, [&](tiers::TensorId tensor) { return context_.runtime.pin_extent(tensor, pin); }));
  if (!copies_) return ok();
  for (const CommitCopies::Copy& copy : copies_->copies(context_))
    PENSTOCK_TRY(copies_->runtime().pin_extent(copy.tensor, pin));
  return ok();
}

/// Makes the bytes and the manifest of this rank durable.
Result<void> EngineCommits::prepare(Manifest& manifest, CommitReport& report) {
  PENSTOCK_TRY(context_.runtime.sync());
  if (copies_) PENSTOCK_TRY(copies_->copy(context_));
  PENSTOCK_TRY(pin_tensors(pin_of(manifest.generation)));
  for (const swap::PathReport& path : context_.runtime.paths()) manifest.files.push_back(path.file.name);
  PENSTOCK_TRY(for_committed(context_, [&](tiers::TensorId tensor) -> Result<void> {
    describe(context_.runtime, tensor, context_.internals.blocks(tensor).step(), 0, manifest);
    report.kept += manifest.tensors.back().size;
    return ok();
  }));
  if (copies_) {
    const auto first_file = static_cast<std::uint32_t>(manifest.files.size());
    for (const swap::PathReport& path : copies_->runtime().paths()) manifest.files.push_back(path.file.name);
    for (const CommitCopies::Copy& copy : copies_->copies(context_)) {
      describe(copies_->runtime(), copy.tensor, copy.step, first_file, manifest);
      report.copied += manifest.tensors.back().size;
    }
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const CommittedTensor& a, const CommittedTensor& b) { return a.key < b.key; });
  report.manifest = ByteCount(manifest.encode().size());
  return directory_.write(manifest);
}

Result<CommitReport> EngineCommits::commit(Manifest manifest) {
  CommitReport report;
  const TimePoint began = Clock::steady().now();
  std::uint64_t attempt = 0, run = 0;
  PENSTOCK_TRY(agree_on_outcome(context_, committing, ok(), &attempt));
  PENSTOCK_TRY(agree_on_outcome(context_, committing, ok(), &run));
  manifest.run = last_ ? last_->run : std::array{run, attempt};
  manifest.attempt = attempt;
  manifest.generation = report.generation = last_ ? last_->generation + 1 : 1;
  manifest.engine = engine_;
  manifest.rank = context_.communicator.rank();
  manifest.ranks = context_.communicator.size();
  const Result<void> prepared = prepare(manifest, report);
  if (context_.failure) return *context_.failure;
  if (auto agreed = agree_on_outcome(context_, committing, prepared); !agreed) {
    // Peers may have a manifest of this generation; without this rank's it is none.
    if (!context_.failure) (void)directory_.remove(engine_, manifest.generation);
    release(manifest.generation);
    return agreed.error();
  }
  const auto before = last_;
  last_ = FoundManifest{
      .run = manifest.run, .generation = manifest.generation, .attempt = attempt, .ranks = manifest.ranks};
  if (before) {
    release(before->generation);
    PENSTOCK_TRY(directory_.remove(engine_, before->generation));
  }
  report.duration = Clock::steady().now() - began;
  return report;
}

}  // namespace penstock::zero
