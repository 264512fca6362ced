// Memory kept between calls: compiled programs and idle workspaces. Torch-free.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine.h"

namespace specgrad {

// Programs by spec and layouts, the most recently used first. The least recently used go when
// there are too many or their tables too large; the last one added always stays.
class ProgramCache {
 public:
  std::shared_ptr<const Program> find(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!entries_.empty() && entries_.front()->key() == key) return entries_.front();
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front();
  }

  void add(std::shared_ptr<const Program> program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_key_.find(program->key());  // two threads may have compiled the same
    if (found != by_key_.end()) forget(found->second);
    bytes_ += program->bytes();
    entries_.push_front(std::move(program));
    by_key_[entries_.front()->key()] = entries_.begin();
    shrink();
  }

  void set_limits(int64_t programs, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    most_programs_ = programs;
    most_bytes_ = bytes;
    shrink();
  }

  // Forgets all and returns the bytes they had.
  int64_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    by_key_.clear();
    entries_.clear();
    return std::exchange(bytes_, 0);
  }

 private:
  using Entries = std::list<std::shared_ptr<const Program>>;

  void forget(Entries::iterator entry) {
    bytes_ -= (*entry)->bytes();
    by_key_.erase((*entry)->key());
    entries_.erase(entry);
  }

  void shrink() {
    while (entries_.size() > 1 &&
           (static_cast<int64_t>(entries_.size()) > most_programs_ || bytes_ > most_bytes_)) {
      forget(std::prev(entries_.end()));
    }
  }

  std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string_view, Entries::iterator> by_key_;  // views of their keys
  int64_t bytes_ = 0;
  int64_t most_programs_ = 4096, most_bytes_ = int64_t{64} << 20;
};

// Workspaces that no call is using; each call borrows one.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> borrow() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }

  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

  // Frees the idle ones and returns the bytes they had.
  int64_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t bytes = 0;
    for (const std::unique_ptr<Workspace>& workspace : idle_) bytes += workspace->bytes();
    idle_.clear();
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

// Never destroyed: threads may still run when the process ends.
inline ProgramCache& programs() {
  static ProgramCache* instance = new ProgramCache;
  return *instance;
}

inline WorkspacePool& workspaces() {
  static WorkspacePool* instance = new WorkspacePool;
  return *instance;
}

}  // namespace specgrad
