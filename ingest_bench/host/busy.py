"""Be busy on one CPU: `busy.py`. The standard library alone. It ends when it is killed, or with who began it."""

if __name__ == "__main__":
    while True:
        pass
