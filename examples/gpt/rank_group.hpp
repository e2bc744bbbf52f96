#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/comm/process_group.hpp>
#include <penstock/zero/launch/rank_identity.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpt {

/// The ranks of a training run: threads of this process, or one each of several processes. Ranks of this process are
/// counted from 0.
class RankGroup {
 public:
  /// All `ranks` are threads of this process.
  [[nodiscard]] static penstock::Result<RankGroup> of_threads(std::uint32_t ranks);
  /// Joins the other processes.
  [[nodiscard]] static penstock::Result<RankGroup> of_processes(
      const penstock::zero::ProcessGroupOptions& options);

  /// Ranks of this process.
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] bool is_of_processes() const { return processes_ != nullptr; }
  [[nodiscard]] penstock::zero::RankIdentity identity(std::uint32_t index) const;
  [[nodiscard]] penstock::zero::GroupMembership membership(std::uint32_t index) const;
  /// The rank has failed: the collectives of its peers fail.
  void abort(std::uint32_t index, const penstock::Error& error) const;
  /// Compares what all processes must have in common, one per line: a name, a tab and a value. Collective.
  [[nodiscard]] penstock::Result<void> compare(const std::string& description) const;
  /// What the ranks of all processes have in common after a step.
  struct Step {
    double loss = 0;  ///< the mean of all ranks
    int signal = 0;   ///< that ends the training, if one of them has got it
  };
  /// The same on all; collective, called by one thread of each process. Of `mine`, the loss is this process' mean.
  [[nodiscard]] penstock::Result<Step> agree(const Step& mine) const;
  /// What a user may want to know, one per line.
  [[nodiscard]] std::vector<std::string> take_messages() const;

 private:
  std::uint32_t size_ = 1;
  std::shared_ptr<penstock::zero::InProcessGroup> threads_;
  std::shared_ptr<penstock::zero::ProcessGroup> processes_;
};

}  // namespace gpt
