"""HTTP/1.1 as cheap as a bare loop of sendmsg and recv: what every protocol over HTTP sends with.

http_user.py a Locust user that posts bodies on one keep-alive connection (`protocols.connection`)
tls.py       such a connection, encrypted and verified
framing.py   where an answer begins and ends
"""
