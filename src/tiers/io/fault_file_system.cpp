#include <penstock/tiers/io/fault_file_system.hpp>

#include <numeric>

namespace penstock::tiers {

std::uint64_t FaultFileSystem::count_of(std::optional<Operation> operation) const {
  if (operation) return accepted_[static_cast<std::size_t>(*operation)];
  return std::accumulate(accepted_.begin(), accepted_.end(), std::uint64_t{0});
}

std::uint64_t FaultFileSystem::accepted(std::optional<Operation> operation) const {
  const std::lock_guard lock(mutex_);
  return count_of(operation);
}

std::uint64_t FaultFileSystem::struck() const {
  const std::lock_guard lock(mutex_);
  return struck_;
}

/// The fault that this call of that kind meets.
std::optional<FileSystemFault> FaultFileSystem::strike(Operation operation) {
  using Effect = FileSystemFault::Effect;
  const std::lock_guard lock(mutex_);
  std::optional<FileSystemFault> struck;
  for (const FileSystemFault& fault : plan_) {
    if (fault.operation && *fault.operation != operation) continue;
    if (fault.effect == Effect::buffered && operation != Operation::create_scratch) continue;
    const std::uint64_t number = count_of(fault.operation);
    if (number < fault.occurrence || number - fault.occurrence >= fault.count) continue;
    struck = fault;
    ++struck_;
    break;
  }
  ++accepted_[static_cast<std::size_t>(operation)];
  return struck;
}

Result<File> FaultFileSystem::create_scratch(const std::filesystem::path& directory, ByteCount size,
                                             DirectIo direct) {
  const auto fault = strike(Operation::create_scratch);
  if (!fault) return within_.create_scratch(directory, size, direct);
  if (fault->effect == FileSystemFault::Effect::fail) {
    return refused(directory, size, fault->error, within_.free_space(directory));
  }
  const std::string why = "a fault of the plan";
  if (direct == DirectIo::required) return no_direct_io(directory, why);
  auto file = within_.create_scratch(directory, size, DirectIo::off);
  if (!file || direct == DirectIo::off) return file;
  File::Properties properties = file->properties();
  properties.direct_note = why;
  return std::move(*file).described_as(std::move(properties));
}

Result<ByteCount> FaultFileSystem::free_space(const std::filesystem::path& directory) {
  if (const auto fault = strike(Operation::free_space)) {
    return Error::from_errno("FileSystem::free_space", fault->error).object(directory.string());
  }
  return within_.free_space(directory);
}

}  // namespace penstock::tiers
