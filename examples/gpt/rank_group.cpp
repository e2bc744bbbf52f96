#include "gpt/rank_group.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

Result<RankGroup> RankGroup::of_threads(std::uint32_t ranks) {
  RankGroup group;
  group.size_ = ranks;
  PENSTOCK_TRY_ASSIGN(group.threads_, zero::InProcessGroup::create(ranks));
  return group;
}

Result<RankGroup> RankGroup::of_processes(const zero::ProcessGroupOptions& options) {
  RankGroup group;
  PENSTOCK_TRY_ASSIGN(group.processes_, zero::ProcessGroup::join(options));
  return group;
}

zero::RankIdentity RankGroup::identity(std::uint32_t index) const {
  return processes_ ? processes_->identity() : zero::RankIdentity::local(index, size_);
}

zero::GroupMembership RankGroup::membership(std::uint32_t index) const {
  return processes_ ? zero::process_membership(processes_) : zero::in_process_membership(threads_, index);
}

Result<void> RankGroup::compare(const std::string& description) const {
  return processes_ ? processes_->agree(description) : ok();
}

Result<RankGroup::Step> RankGroup::agree(const Step& mine) const {
  if (!processes_) return mine;
  PENSTOCK_TRY_ASSIGN(const auto all,
                      processes_->gather("losses and signals", std::as_bytes(std::span(&mine, 1))));
  Step agreed;
  for (const auto& bytes : all) {
    Step one;
    std::memcpy(&one, bytes.data(), sizeof one);
    agreed.loss += one.loss / static_cast<double>(all.size());
    agreed.signal = std::max(agreed.signal, one.signal);
  }
  return agreed;
}

void RankGroup::abort(std::uint32_t index, const Error& error) const {
  return processes_ ? processes_->abort(error) : threads_->abort(index, error);
}

std::vector<std::string> RankGroup::take_messages() const {
  return processes_ ? processes_->take_messages() : std::vector<std::string>();
}

}  // namespace gpt
