#pragma once

#include "zero/comm/job_control.hpp"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::test {

/// The control channel of a job whose ranks are in one process. Safe from any thread.
class MemoryJob : public std::enable_shared_from_this<MemoryJob> {
 public:
  explicit MemoryJob(std::uint32_t ranks) : members_(ranks) {}

  [[nodiscard]] std::unique_ptr<zero::JobControl> control(std::uint32_t rank) {
    return std::make_unique<Control>(shared_from_this(), rank);
  }

 private:
  struct Member {
    std::optional<std::pair<std::string, std::vector<std::byte>>> offered;  // label and bytes
    bool gathers = false;                                                   // until it has taken the slots
    std::optional<zero::JobControl::Slots> gathered;
    bool recovers = false, recovered = false;
    std::mutex wake_mutex;
    std::function<void()> wake;
  };

  class Control final : public zero::JobControl {
   public:
    Control(std::shared_ptr<MemoryJob> job, std::uint32_t rank)
        : job_(std::move(job)), rank_(rank), mine_(job_->members_[rank]) {}

    std::uint32_t rank() const override { return rank_; }
    std::uint32_t ranks() const override { return static_cast<std::uint32_t>(job_->members_.size()); }

    Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) override {
      PENSTOCK_TRY(start_gather(label, bytes));
      std::unique_lock lock(job_->mutex_);
      job_->changed_.wait(lock, [&] { return mine_.gathered || job_->obstacle(); });
      PENSTOCK_TRY_ASSIGN(auto all, take_gathered());
      return *std::move(all);
    }
    Result<void> start_gather(const std::string& label, std::span<const std::byte> bytes) override {
      {
        const std::lock_guard lock(job_->mutex_);
        if (job_->obstacle()) return *job_->obstacle();
        if (mine_.gathers) return out_of_order("a gathering is in flight");
        mine_.gathers = true;
        mine_.offered.emplace(label, std::vector<std::byte>(bytes.begin(), bytes.end()));
        job_->deliver();
      }
      job_->wake_peers(rank_);
      return ok();
    }
    Result<std::optional<Slots>> poll_gather() override {
      const std::lock_guard lock(job_->mutex_);
      return take_gathered();
    }
    std::vector<std::uint32_t> absent() const override {
      const std::lock_guard lock(job_->mutex_);
      std::vector<std::uint32_t> ranks;
      for (std::uint32_t r = 0; r < job_->members_.size(); ++r) {
        const Member& peer = job_->members_[r];
        if (mine_.recovers ? !peer.recovers : mine_.offered && !peer.offered) ranks.push_back(r);
      }
      return ranks;
    }

    std::optional<Error> obstacle() const override {
      const std::lock_guard lock(job_->mutex_);
      return job_->obstacle();
    }
    void fail(const Error& error) noexcept override {
      fail_job(Error(ErrorCode::peer_failed, "JobControl")
                   .reason("rank " + std::to_string(rank_) + " failed")
                   .note("cause   " + error.message()));
    }
    void fail_job(const Error& error) noexcept override {
      {
        const std::lock_guard lock(job_->mutex_);
        if (job_->failure_) return;
        job_->failure_ = error;
      }
      job_->wake_peers(rank_);
    }

    void interrupt(const Error& cause) noexcept override {
      {
        const std::lock_guard lock(job_->mutex_);
        if (job_->obstacle()) return;
        job_->interruption_ = Error(ErrorCode::interrupted, "JobControl")
                                  .reason("rank " + std::to_string(rank_) + " interrupted the collectives")
                                  .note("cause   " + cause.message());
        for (Member& member : job_->members_) {
          member.offered.reset();
          member.gathers = member.gathered.has_value();
        }
      }
      job_->wake_peers(rank_);
    }
    Result<void> start_recovery() override {
      {
        const std::lock_guard lock(job_->mutex_);
        if (job_->failure_) return *job_->failure_;
        if (mine_.recovers || mine_.recovered) return out_of_order("the recovery has started already");
        if (!job_->interruption_) return out_of_order("the job is not interrupted");
        mine_.recovers = true;
        if (!std::ranges::all_of(job_->members_, &Member::recovers)) return ok();
        for (Member& member : job_->members_) {
          member.recovered = !(member.recovers = false);
          member.gathered.reset();
          member.gathers = false;
        }
        job_->interruption_.reset();
      }
      job_->wake_peers(rank_);
      return ok();
    }
    Result<bool> poll_recovery() override {
      const std::lock_guard lock(job_->mutex_);
      if (job_->failure_) return *job_->failure_;
      return std::exchange(mine_.recovered, false);
    }

    void set_wake(std::function<void()> wake) override {
      const std::lock_guard lock(mine_.wake_mutex);
      mine_.wake = std::move(wake);
    }

   private:
    static Error out_of_order(const char* reason) {
      return Error(ErrorCode::failed_state, "JobControl").reason(reason);
    }
    Result<std::optional<Slots>> take_gathered() {
      if (!mine_.gathered && job_->obstacle()) return *job_->obstacle();
      if (mine_.gathered) mine_.gathers = false;
      return std::exchange(mine_.gathered, std::nullopt);
    }

    const std::shared_ptr<MemoryJob> job_;
    const std::uint32_t rank_;
    Member& mine_;
  };

  [[nodiscard]] const std::optional<Error>& obstacle() const { return failure_ ? failure_ : interruption_; }

  /// Gives every rank the bytes of all once all have come.
  void deliver() {
    check_labels();
    zero::JobControl::Slots all;
    for (const Member& member : members_) {
      if (!member.offered || failure_) return;
      all.push_back(member.offered->second);
    }
    for (Member& member : members_) {
      member.offered.reset();
      member.gathered = all;
    }
  }
  void check_labels() {
    const auto offered = [](const Member& member) { return member.offered.has_value(); };
    const auto first = std::ranges::find_if(members_, offered);
    for (std::size_t r = 0; r < members_.size(); ++r) {
      if (!members_[r].offered || members_[r].offered->first == first->offered->first) continue;
      const std::string &one = first->offered->first, &other = members_[r].offered->first;
      failure_ = Error::invalid_argument("JobControl")
                     .reason("ranks exchange different things")
                     .wanted(one)
                     .got(other);
      const bool first_leaves = one == zero::JobControl::leave_label;
      if (!first_leaves && other != zero::JobControl::leave_label) return;
      const std::size_t rank = first_leaves ? static_cast<std::size_t>(first - members_.begin()) : r;
      failure_ =
          Error(ErrorCode::peer_failed, "JobControl").reason("rank " + std::to_string(rank) + " has left");
    }
  }
  void wake_peers(std::uint32_t rank) noexcept {
    changed_.notify_all();
    for (std::uint32_t peer = 0; peer < members_.size(); ++peer) {
      if (peer == rank) continue;
      const std::lock_guard lock(members_[peer].wake_mutex);
      if (members_[peer].wake) members_[peer].wake();
    }
  }

  std::mutex mutex_;  // guards the following members except the wake functions
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::optional<Error> failure_, interruption_;
};

}  // namespace penstock::test
