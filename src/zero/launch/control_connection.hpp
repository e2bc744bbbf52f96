#pragma once

#include <asio.hpp>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::control {

/// A TCP connection that reads all the time, and writes frames in the order in which they are given. Everything runs on
/// the thread of its io_context.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Received = std::function<void(std::span<const std::byte>)>;
  using Sent = std::function<void()>;
  using Closed = std::function<void(const std::string& why)>;

  explicit Connection(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  /// `sent` is called when is_idle() becomes true, and `closed` once, when the connection has ended by itself or by
  /// close().
  void start(Received received, Sent sent, Closed closed) {
    received_ = std::move(received);
    sent_ = std::move(sent);
    closed_ = std::move(closed);
    asio::error_code ignored;
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    read();
  }
  /// The connection is closed after the last frame.
  void send(std::vector<std::byte> frame, bool last = false) {
    if (!is_open() || ends_ || closes_) return;
    closes_ = last;
    frames_.push_back(std::move(frame));
    if (frames_.size() == 1) write();
  }
  /// Sends what was given before, then the end of the stream. The peer closes the connection.
  void end() {
    ends_ = true;
    if (frames_.empty()) shut_down();
  }
  void close(const std::string& why) {
    if (!is_open()) return;
    asio::error_code ignored;
    socket_.close(ignored);
    frames_.clear();
    std::exchange(closed_, nullptr)(why);
  }
  /// Everything that was given is sent.
  [[nodiscard]] bool is_idle() const { return frames_.empty(); }
  [[nodiscard]] bool is_open() const { return closed_ != nullptr; }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](asio::error_code error, std::size_t size) {
                              if (!self->is_open()) return;
                              if (error) return self->close(error.message());
                              self->received_(std::span(self->buffer_).first(size));
                              if (self->is_open()) self->read();
                            });
  }
  void write() {
    asio::async_write(socket_, asio::buffer(frames_.front()),
                      [self = shared_from_this()](asio::error_code error, std::size_t) {
                        if (!self->is_open()) return;
                        if (error) return self->close(error.message());
                        self->frames_.pop_front();
                        if (!self->frames_.empty()) return self->write();
                        self->sent_();
                        if (self->closes_) return self->close("the last message is sent");
                        if (self->ends_) self->shut_down();
                      });
  }
  void shut_down() {
    asio::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }

  asio::ip::tcp::socket socket_;
  Received received_;
  Sent sent_;
  Closed closed_;
  std::array<std::byte, 4096> buffer_{};
  std::deque<std::vector<std::byte>> frames_;
  bool ends_ = false, closes_ = false;
};

}  // namespace penstock::zero::control
