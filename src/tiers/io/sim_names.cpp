#include "tiers/io/sim_names.hpp"

#include "tiers/io/sim_random.hpp"

#include <algorithm>
#include <utility>

namespace penstock::tiers {

SimNames::Path SimNames::normal(const Path& path) {
  const Path plain = path.lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

std::shared_ptr<SimFile> SimNames::find(const Path& path) const {
  const auto found = names_.find(normal(path));
  return found == names_.end() ? nullptr : found->second;
}

std::vector<std::string> SimNames::list(const Path& directory) const {
  std::vector<std::string> names;
  for (const auto& [path, file] : names_) {
    if (path.parent_path() == normal(directory)) names.push_back(path.filename().string());
  }
  for (const Path& path : directories_) {
    if (path.has_filename() && path.parent_path() == normal(directory))
      names.push_back(path.filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void SimNames::apply(const Change& change, Names& names) {
  if (!change.from.empty()) names.erase(change.from);
  if (!change.to.empty()) names[change.to] = change.file;
}

void SimNames::change(Change change) {
  apply(change, names_);
  changes_.push_back(std::move(change));
}

void SimNames::sync(const Path& directory) {
  const Path synced = normal(directory);
  for (Change& change : changes_) {
    change.from_synced |= change.from.parent_path() == synced;
    change.to_synced |= change.to.parent_path() == synced;
  }
  std::erase_if(volatile_directories_, [&](const Path& made) { return made.parent_path() == synced; });
  make_durable();
}

void SimNames::lose_some(const Path& directory, std::uint64_t& random) {
  const Survival survival = choose_survival(random);
  std::vector<Change> kept;
  for (Change& change : changes_) {
    const bool at_risk = change.needs_sync_of(normal(directory));
    if (!at_risk || survives(survival, random)) kept.push_back(std::move(change));
  }
  changes_ = std::move(kept);
  const auto made = volatile_directories_;  // a failed sync makes none durable
  sync(directory);
  volatile_directories_ = made;
}

void SimNames::make_durable() {
  std::set<Path> names;  // of the changes that become durable
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    change->durable = change->is_complete() || names.contains(change->from) || names.contains(change->to);
    if (!change->durable) continue;
    for (const Path& name : {change->from, change->to}) {
      if (!name.empty()) names.insert(name);
    }
  }
  for (const Change& change : changes_) {
    if (change.durable) apply(change, durable_);
  }
  std::erase_if(changes_, [](const Change& change) { return change.durable; });
}

void SimNames::lose_power(std::uint64_t& random) {
  const Survival survival = choose_survival(random);
  for (const Change& change : changes_) {
    if (survives(survival, random)) apply(change, durable_);
  }
  changes_.clear();
  for (const Path& made : std::exchange(volatile_directories_, {})) {
    if (survives(survival, random)) continue;
    const auto is_below = [&made](const Path& path) {
      return (path.string() + "/").starts_with(made.string() + "/");
    };
    std::erase_if(directories_, is_below);
    std::erase_if(durable_, [&](const auto& name) { return is_below(name.first); });
  }
  names_ = durable_;
  std::set<SimFile*> files;  // a set: after lost changes a file may have two names
  for (const auto& [path, file] : names_) {
    if (files.insert(file.get()).second) file->lose_power(random);
  }
}

}  // namespace penstock::tiers
