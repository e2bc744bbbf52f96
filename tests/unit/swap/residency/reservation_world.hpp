#pragma once

#include "unit/swap/residency/residency_fixture.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock::swap::test {

using tiers::CopyState;
using tiers::TensorId;
using Effect = ResidencyFixture::Effect;

inline constexpr ByteCount page = 4_KiB;
inline constexpr std::size_t threads = 2;

struct Operation {
  enum class Kind : std::uint8_t { acquire, release } kind{};
  std::size_t tensor = 0;
  Access access = Access::read;
};
using Program = std::vector<Operation>;

/// Leases after each other, or all held until the last one is granted.
inline Program program_of(const std::vector<std::pair<std::size_t, Access>>& uses, bool nested) {
  Program program;
  for (const auto& [tensor, access] : uses) {
    program.push_back({Operation::Kind::acquire, tensor, access});
    if (!nested) program.push_back({Operation::Kind::release, tensor, access});
  }
  if (nested) {
    for (const auto& [tensor, access] : uses) program.push_back({Operation::Kind::release, tensor, access});
  }
  return program;
}

struct Scenario {
  std::vector<std::uint64_t> pages;  // of each tensor
  std::uint64_t budget = 2;          // in pages
  std::array<Program, threads> programs;
  std::vector<std::size_t> hints = {};     // tensors for which prefetch() is called, each at any time
  Hint hint = Hint::soon;                  // that it gives
  std::vector<std::size_t> expected = {};  // the order of use that is predicted
  bool write_behind = false;
};

/// For the message of a failure: "acquire 0 modify, release 0 | …".
inline std::string text_of(const Scenario& scenario) {
  std::string text;
  for (const Program& program : scenario.programs) {
    for (const Operation& operation : program) {
      text += operation.kind == Operation::Kind::acquire ? "acquire " : "release ";
      text += std::to_string(operation.tensor) + ' ' + std::string(to_string(operation.access)) + ", ";
    }
    text += "| ";
  }
  return text;
}

/// What a thread or a transfer does next.
struct Choice {
  enum class Kind : std::uint8_t { thread, transfer, hint } kind{};
  std::size_t index = 0;
};

/// One run of the scenario.
class World {
 public:
  World(const Scenario& scenario, const std::array<std::thread::id, threads>& ids)
      : scenario_(scenario),
        ids_(ids),
        fixture_({.host_budget = page * scenario.budget, .lookahead = page * 8}),
        hint_is_given_(scenario.hints.size()) {
    for (const std::uint64_t count : scenario.pages) {
      tensors_.push_back(fixture_.add(page * count, {.write_behind = scenario.write_behind}).value());
      fixture_.acquire(tensors_.back(), Access::overwrite);
      fixture_.residency.queue_store(tensors_.back());
      fixture_.run();
    }
    std::vector<TensorId> order;
    for (const std::size_t tensor : scenario.expected) order.push_back(tensors_[tensor]);
    fixture_.rehearse(order);  // leaves them on disk only
    fixture_.drops.clear();
    advance();
  }

  [[nodiscard]] std::vector<Choice> choices() const {
    std::vector<Choice> all;
    for (std::size_t i = 0; i < threads; ++i) {
      if (!threads_[i].waits && threads_[i].next < scenario_.programs[i].size())
        all.push_back({Choice::Kind::thread, i});
    }
    for (std::size_t i = 0; i < fixture_.effects.size(); ++i) all.push_back({Choice::Kind::transfer, i});
    for (std::size_t i = 0; i < scenario_.hints.size(); ++i) {
      if (!hint_is_given_[i]) all.push_back({Choice::Kind::hint, i});
    }
    return all;
  }
  void apply(const Choice& choice) {
    if (choice.kind == Choice::Kind::thread) act(choice.index);
    if (choice.kind == Choice::Kind::hint) hint(choice.index);
    if (choice.kind == Choice::Kind::transfer) {
      std::swap(fixture_.effects.front(), fixture_.effects[choice.index]);
      fixture_.finish(fixture_.take_effect());
      note_transfers();
    }
    advance();
    run_until_stable();
    check_invariants();
  }
  [[nodiscard]] const std::string& violation() const { return violation_; }
  /// Of each thread, which of its requests got their leases.
  [[nodiscard]] std::string outcome() const { return threads_[0].outcomes + "|" + threads_[1].outcomes; }

  /// All that later decisions depend on.
  [[nodiscard]] std::string state() const {
    std::string text = outcome();
    for (const Thread& thread : threads_)
      text += ' ' + std::to_string(thread.next) + (thread.waits ? 'w' : 'r');
    for (const Pending& one : pending_)
      text += std::string(" p") + digit(one.thread) + (one.loads ? 'l' : '-');
    for (std::size_t i = 0; i < tensors_.size(); ++i) text += ' ' + state_of(i);
    std::vector<std::string> transfers;
    for (const Effect& effect : fixture_.effects)
      transfers.push_back(std::string(effect.kind == Effect::Kind::load ? " l" : " s") +
                          digit(number_of(effect.tensor)) + (effect.urgent ? "!" : ""));
    std::sort(transfers.begin(), transfers.end());
    for (const std::string& transfer : transfers) text += transfer;
    text += " h";
    for (const std::size_t tensor : hinted_) text += digit(tensor);
    text += " u" + uses_ + " g";
    for (const bool given : hint_is_given_) text += given ? '1' : '0';
    return text;
  }

 private:
  struct Thread {
    std::size_t next = 0;  // operation
    bool waits = false;
    std::optional<RequestId> request;
    std::string outcomes;           // 'y' or 'n' of each request
    std::vector<std::size_t> held;  // operations that have got their leases
  };
  struct Pending {
    std::size_t thread = 0, tensor = 0;
    bool loads = false;  // a load was started for it
  };

  static char digit(std::size_t number) { return static_cast<char>('0' + number); }

  [[nodiscard]] std::size_t number_of(TensorId tensor) const {
    return static_cast<std::size_t>(std::find(tensors_.begin(), tensors_.end(), tensor) - tensors_.begin());
  }
  [[nodiscard]] const tiers::HostCopy& copy(std::size_t tensor) const {
    return fixture_.tensors.copy(tensors_[tensor]);
  }
  [[nodiscard]] std::string state_of(std::size_t tensor) const {
    const tiers::HostCopy& one = copy(tensor);
    std::string text = std::to_string(static_cast<int>(one.state)) + ',' + std::to_string(one.readers) +
                       (one.exclusive ? 'x' : '-') + (fixture_.tensors.stored(tensors_[tensor]) ? 's' : '-');
    text += one.reservation.held() ? std::to_string(one.reservation.offset()) : std::string("-");
    const auto earlier = [&](TensorId other) { return fixture_.tensors.copy(other).last_use < one.last_use; };
    text += ',' + std::to_string(std::count_if(tensors_.begin(), tensors_.end(), earlier));
    return text + (marked_.contains(tensor) ? 'm' : '-');
  }
  [[nodiscard]] bool lacks_room(const Pending& one) const {
    return copy(one.tensor).state == CopyState::absent && !copy(one.tensor).reservation.held();
  }

  void act(std::size_t index) {
    Thread& thread = threads_[index];
    const Operation& operation = scenario_.programs[index][thread.next];
    const TensorId tensor = tensors_[operation.tensor];
    if (operation.kind == Operation::Kind::release) {
      const auto held = std::find(thread.held.begin(), thread.held.end(), operation.tensor);
      ++thread.next;
      if (held == thread.held.end()) return;  // its request failed
      thread.held.erase(held);
      fixture_.residency.release(tensor, operation.access);
      return;
    }
    uses_ += digit(operation.tensor);
    forget_hint(operation.tensor);
    marked_.erase(operation.tensor);
    thread.waits = true;
    thread.request = fixture_.residency.request(tensor, operation.access, Use::recorded,
                                                {.thread = ids_[index], .blocks = true});
    pending_.push_back({index, operation.tensor});
  }
  void hint(std::size_t index) {
    const std::size_t tensor = scenario_.hints[index];
    hint_is_given_[index] = true;
    fixture_.residency.prefetch(tensors_[tensor], scenario_.hint);
    marked_.insert(tensor);
    forget_hint(tensor);
    hinted_.push_back(tensor);
  }
  void forget_hint(std::size_t tensor) { std::erase(hinted_, tensor); }

  void advance() {
    fixture_.residency.advance();
    note_transfers();
  }
  /// What has begun since the last call. Loads for requests begin in the order of the requests, and nothing is read
  /// ahead while one waits for room.
  void note_transfers() {
    for (const TensorId dropped : std::exchange(fixture_.drops, {})) marked_.erase(number_of(dropped));
    std::set<std::size_t> loading;
    for (const Effect& effect : fixture_.effects) {
      if (effect.kind == Effect::Kind::load) loading.insert(number_of(effect.tensor));
    }
    const auto first_waiting =
        std::find_if(pending_.begin(), pending_.end(), [&](const Pending& one) { return lacks_room(one); });
    for (const std::size_t tensor : loading) {
      if (loading_.contains(tensor)) continue;
      const auto request = std::find_if(pending_.begin(), pending_.end(),
                                        [&](const Pending& one) { return one.tensor == tensor; });
      if (request != pending_.end()) request->loads = true;
      if (first_waiting == pending_.end() || fails_starved_) continue;
      if (request == pending_.end()) fail("it reads ahead while a request waits for room");
      if (request > first_waiting) fail("a later request gets room before the first one that waits for it");
    }
    loading_ = std::move(loading);
    if (first_waiting != pending_.end()) hinted_.clear();
    std::erase_if(hinted_, [&](std::size_t tensor) { return copy(tensor).state != CopyState::absent; });
  }

  /// Until nothing changes before a call or the end of a transfer.
  void run_until_stable() {
    do {
      fails_starved_ = true;
      while (fixture_.effects.empty() && !pending_.empty() && fixture_.residency.fail_starved_request())
        advance();
      fails_starved_ = false;
    } while (take_outcomes());
  }
  bool take_outcomes() {
    bool any = false;
    for (std::size_t i = 0; i < threads; ++i) {
      Thread& thread = threads_[i];
      if (!thread.waits) continue;
      const auto outcome = fixture_.residency.take(*thread.request);
      if (!outcome) continue;
      const Operation& operation = scenario_.programs[i][thread.next++];
      std::erase_if(pending_, [i](const Pending& one) { return one.thread == i; });
      if (!*outcome) check_failure(operation, outcome->error());
      if (*outcome) thread.held.push_back(operation.tensor);
      thread.outcomes += *outcome ? 'y' : 'n';
      thread.waits = false;
      any = true;
    }
    return any;
  }

  /// A request fails where leases leave no gap that is large enough for it, and for nothing else.
  void check_failure(const Operation& operation, const Error& error) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> leased{{scenario_.budget, scenario_.budget}};
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::uint64_t first = copy(i).reservation.offset() / page.value();
      if (copy(i).leased()) leased.emplace_back(first, first + scenario_.pages[i]);
    }
    std::sort(leased.begin(), leased.end());
    std::uint64_t free_from = 0, largest_gap = 0;
    for (const auto& [first, end] : leased) {
      largest_gap = std::max(largest_gap, first - free_from);
      free_from = end;
    }
    if (error.code() != ErrorCode::budget_too_small || largest_gap >= scenario_.pages[operation.tensor])
      fail("a request fails although there is room between the leases: " + error.message());
  }
  void check_invariants() {
    const auto at_end = [&](std::size_t i) { return threads_[i].next == scenario_.programs[i].size(); };
    const bool stuck = std::ranges::all_of(std::views::iota(std::size_t(0), threads),
                                           [&](std::size_t i) { return threads_[i].waits || at_end(i); });
    // Threads that take two leases in opposite orders wait for each other: that is the callers' deadlock.
    const bool by_leases =
        std::ranges::all_of(pending_, [&](const Pending& one) { return copy(one.tensor).leased(); });
    if (stuck && !by_leases && fixture_.effects.empty()) fail("every thread waits, and nothing is in flight");
    for (const Effect& effect : fixture_.effects) {
      const bool wanted = std::ranges::any_of(pending_, [&](const Pending& one) {
        const bool lacks_memory = effect.kind == Effect::Kind::store && lacks_room(one);
        return lacks_memory || (tensors_[one.tensor] == effect.tensor && !copy(one.tensor).leased());
      });
      if (wanted && !effect.urgent) fail("a request waits for a transfer that others may go before");
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const tiers::HostCopy& one = copy(i);
      if (one.exclusive && one.readers > 0) fail("a tensor is read while it is modified");
      const bool only_in_memory =
          one.exclusive || one.state == CopyState::dirty || one.state == CopyState::storing;
      if (!only_in_memory && !fixture_.tensors.stored(tensors_[i])) fail("the newest contents are lost");
    }
  }
  void fail(const std::string& reason) {
    if (violation_.empty()) violation_ = reason;
  }

  const Scenario& scenario_;
  const std::array<std::thread::id, threads>& ids_;
  ResidencyFixture fixture_;
  std::vector<TensorId> tensors_;
  std::array<Thread, threads> threads_;
  std::vector<Pending> pending_;   // in their order
  std::set<std::size_t> loading_;  // tensors
  std::vector<bool> hint_is_given_;
  std::vector<std::size_t> hinted_;  // that may be read ahead still, in their order
  std::set<std::size_t> marked_;     // hinted, and not used or dropped since: they are evicted last
  std::string uses_;
  bool fails_starved_ = false;
  std::string violation_;
};

}  // namespace penstock::swap::test
