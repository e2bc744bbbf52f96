#pragma once

#include "zero/launch/control_channel.hpp"
#include "zero/launch/control_client.hpp"
#include "zero/launch/control_connection.hpp"
#include "zero/launch/control_server.hpp"
#include "zero/launch/job_state.hpp"

#include <asio.hpp>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {

/// The control channel on TCP. Its thread connects with rank 0, serves the others if it is rank 0's, and moves the
/// bytes of both ends; callers wait for what it publishes.
class TcpControlChannel final : public ControlChannel {
 public:
  explicit TcpControlChannel(const Options& options);
  ~TcpControlChannel() override;

  Result<void> listen();
  Result<void> start();
  Result<void> wait_for_peers();

  std::uint32_t rank() const override { return options_.rank; }
  std::uint32_t ranks() const override { return options_.ranks; }
  const std::vector<Peer>& peers() const override { return *job_.peers(); }
  const Addresses& addresses() const override { return addresses_; }
  Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) override {
    return gather(control::Gatherer::collectives, label, bytes);
  }
  Result<Slots> gather_for_trainer(const std::string& label, std::span<const std::byte> bytes) override {
    return gather(control::Gatherer::trainer, label, bytes);
  }
  Result<void> start_gather(const std::string& label, std::span<const std::byte> bytes) override {
    return start_gather(control::Gatherer::collectives, label, bytes);
  }
  Result<std::optional<Slots>> poll_gather() override;
  std::vector<std::uint32_t> absent() const override;
  void interrupt(const Error& cause) noexcept override;
  Result<void> start_recovery() override;
  Result<bool> poll_recovery() override;
  void fail(const Error& error) noexcept override;
  void fail_job(const Error& error) noexcept override;
  std::optional<Error> obstacle() const override;
  void set_wake(std::function<void()> wake) override;
  std::vector<std::string> take_messages() override;

 private:
  Result<Slots> gather(control::Gatherer by, const std::string& label, std::span<const std::byte> bytes);
  [[nodiscard]] std::string names_of_absent(control::Gatherer by) const;
  Result<void> start_gather(control::Gatherer by, const std::string& label, std::span<const std::byte> bytes);
  bool run();
  void connect();
  void connect_to(std::size_t number);
  void open();
  void note_addresses(const asio::ip::tcp::socket& connected);
  void end_with(const Error& error);
  void retry(const std::string& reason);
  [[nodiscard]] std::string awaited() const;
  void end_without_own_host(const std::string& reason);
  void accept();
  void serve(asio::ip::tcp::socket socket);
  void arm_timer();
  void send();
  void publish();
  void leave();
  [[nodiscard]] bool has_ended() const;
  /// Runs `call` on the thread, then sends what it has caused.
  template <class Call>
  void post(Call call) {
    asio::post(context_, [this, call = std::move(call)] {
      call();
      send();
    });
  }

  const Options options_;
  Endpoint rank_0_;  ///< with its port, once it is known

  // Used by the thread.
  asio::io_context context_{1};
  asio::ip::tcp::acceptor acceptor_{context_};
  asio::ip::tcp::resolver resolver_{context_};
  asio::steady_timer timer_{context_}, attempt_{context_}, retry_{context_}, accept_later_{context_};
  control::ControlClient client_;
  std::optional<control::ControlServer> server_;
  std::shared_ptr<control::Connection> to_rank_0_;
  std::vector<asio::ip::tcp::endpoint> addresses_of_rank_0_;
  std::optional<asio::ip::tcp::socket> connecting_;
  std::map<control::ConnectionId, std::shared_ptr<control::Connection>> connections_;
  control::ConnectionId next_connection_ = 1;
  TimePoint began_{};
  std::string not_reached_;  ///< why the last attempt to reach rank 0 has failed
  bool leaves_ = false;
  std::thread thread_;

  mutable std::mutex mutex_;  // guards the following, for callers
  std::condition_variable changed_;
  control::JobState job_;
  Addresses addresses_;
  std::vector<std::string> messages_;
  std::string awaited_;  ///< what is missing until all ranks have come
  std::uint64_t interrupts_asked_ = 0, interrupts_done_ = 0;
  bool ended_ = false;

  std::mutex wake_mutex_;
  std::function<void()> wake_;
};

}  // namespace penstock::zero
